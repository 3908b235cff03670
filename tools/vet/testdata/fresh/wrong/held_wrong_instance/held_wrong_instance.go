// Package held_wrong_instance: the lock of one object is held, and that of another one wanted.
package held_wrong_instance

import (
	"sync"

	"verbena/ib"
)

type Link struct {
	mu   sync.Mutex
	peer *Link
	up   bool
	qp   *ib.QP
}

// down wants the link's own lock.
//
//verbena:held mu
func (l *Link) down() { l.up = l.qp.State() == ib.QPRTS }

// Cut takes both ends down.
func (l *Link) Cut(other *Link) {
	l.mu.Lock()
	l.down()
	other.down() // want "held"
	l.mu.Unlock()
}
