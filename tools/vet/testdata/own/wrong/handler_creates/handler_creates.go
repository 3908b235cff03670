package handler_creates

import (
	"verbena/ib"
)

// Open makes a queue whose handler makes another.
func Open(dev *ib.Device) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) {
		another(dev)
	}})
}

func another(dev *ib.Device) {
	pd, err := dev.AllocPD() // want "nosleep: .*ib.CQInit.Handler.* may sleep: it calls .*AllocPD"
	if err == nil {
		pd.Dealloc() // want "nosleep: .*ib.CQInit.Handler.* may sleep: it calls .*Dealloc"
	}
}
