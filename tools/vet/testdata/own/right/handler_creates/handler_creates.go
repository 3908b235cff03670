package handler_creates

import (
	"verbena/ib"
)

// Open makes a queue whose handler has a goroutine make another.
func Open(dev *ib.Device) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) {
		go another(dev)
	}})
}

func another(dev *ib.Device) {
	pd, err := dev.AllocPD()
	if err == nil {
		pd.Dealloc()
	}
}
