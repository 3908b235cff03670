package wrong

import (
	"testing"

	"verbena/ib"
)

func handleWithoutCapacity(d *ib.Device, small bool) (*ib.CQ, error) {
	done, either := make(chan int), make(chan int, 1)
	if small {
		either = make(chan int)
	}
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(cq *ib.CQ) {
		done <- 1   // want "nosleep: .*sends to a channel"
		either <- 1 // want "nosleep: .*sends to a channel"
		<-done      // want "nosleep: .*receives from a channel"
	}})
}

func TestNothing(t *testing.T) { _, _ = handleWithoutCapacity(nil, true) }
