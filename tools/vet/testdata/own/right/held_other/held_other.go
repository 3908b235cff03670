package held_other

import (
	"sync"
)

// Pair holds both locks.
type Pair struct {
	send, recv sync.Mutex
	n          int
}

//verbena:held p.send, p.recv
func (p *Pair) add() { p.n++ }

func (p *Pair) Add() {
	p.send.Lock()
	defer p.send.Unlock()
	p.recv.Lock()
	defer p.recv.Unlock()
	p.add()
}
