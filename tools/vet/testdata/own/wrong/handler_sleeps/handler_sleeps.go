package handler_sleeps

import (
	"time"

	"verbena/ib"
)

// Open makes a queue whose handler waits a little before it polls.
func Open(dev *ib.Device) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: poll})
}

func poll(cq *ib.CQ) {
	time.Sleep(time.Millisecond) // want "nosleep: .*ib.CQInit.Handler.* may sleep: it calls time.Sleep"
	cq.Poll(make([]ib.WC, 1))
}
