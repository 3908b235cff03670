package once_quick

import (
	"sync"
	"time"

	"verbena/ib"
)

type dev struct{ fast, slow sync.Once }

var d dev

func Start() { d.slow.Do(func() { time.Sleep(time.Second) }) }

func handler(cq *ib.CQ) { d.fast.Do(func() {}) }

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
