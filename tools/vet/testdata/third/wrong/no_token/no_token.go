package no_token

import (
	"verbena/ib"
)

var sem = make(chan struct{}, 2)

// Take takes the token of another thread.
func Take() { <-sem }

// work is also filled by a producer, so that it may be full when the handler returns an item.
var work = make(chan int, 2)

func Produce(n int) { work <- n }

// slots is a semaphore, but the handler returns a token that it may not have.
var slots = make(chan struct{}, 2)

func handler(cq *ib.CQ) {
	select {
	case sem <- struct{}{}:
		<-sem // want "nosleep: .*receives from a channel"
	default:
	}
	select {
	case n := <-work:
		work <- n // want "nosleep: .*sends to a channel"
	default:
	}
	select {
	case slots <- struct{}{}:
	default:
	}
	<-slots // want "nosleep: .*receives from a channel"
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
