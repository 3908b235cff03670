package copy_locked

import (
	"sync"

	"verbena/ib"
	"verbena/umem"
)

// QP copies payload with its lock held.
type QP struct {
	ib.DriverQP
	mu    sync.Mutex
	space umem.Space
}

func (q *QP) Doorbell(*ib.Hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work() // want "copy: .*Doorbell copies to or from the memory of a process.*with copy_locked.QP.mu held"
}

func (q *QP) Posted() bool { return false }

func (q *QP) work() { q.gather(make([]byte, 8)) }

func (q *QP) gather(b []byte) error { return q.space.ReadV([][]byte{b}, 0) }
