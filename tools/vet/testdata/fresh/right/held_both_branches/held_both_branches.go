// Package held_both_branches: the lock is taken on both ways, in one of them by TryLock.
package held_both_branches

import (
	"sync"

	"verbena/ib"
)

type Link struct {
	mu   sync.Mutex
	up   bool
	busy int
	qp   *ib.QP
}

// look wants the lock.
//
//verbena:held mu
func (l *Link) look() { l.up = l.qp.State() == ib.QPRTS }

// Check looks at the link.
func (l *Link) Check() bool {
	if !l.mu.TryLock() {
		l.mu.Lock()
		l.busy++
	}
	defer l.mu.Unlock()
	l.look()
	return l.up
}
