package once_elsewhere

import (
	"sync"
	"time"

	"verbena/ib"
)

var once sync.Once

func Start() { go once.Do(func() { time.Sleep(time.Second) }) }

func handler(cq *ib.CQ) {
	once.Do(func() {}) // want "nosleep: .*locks once_elsewhere.once, which is held at"
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
