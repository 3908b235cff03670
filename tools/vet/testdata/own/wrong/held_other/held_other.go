package held_other

import (
	"sync"
)

// Pair holds the other lock.
type Pair struct {
	send, recv sync.Mutex
	n          int
}

//verbena:held p.send
func (p *Pair) add() { p.n++ }

func (p *Pair) Add() {
	p.recv.Lock()
	defer p.recv.Unlock()
	p.add() // want "held: .*Add calls .*add without held_other.Pair.send held"
}
