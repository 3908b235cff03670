package clock_variable

import (
	"sync/atomic"
	"time"

	"verbena/ib"
)

type clock struct {
	now   func() time.Time
	sleep func(time.Duration)
}

var wall = clock{now: time.Now, sleep: time.Sleep}

type dev struct {
	last atomic.Int64
	c    clock
}

func (d *dev) reap() {
	for {
		d.c.sleep(time.Second)
	}
}

func Make(x *ib.Device) {
	d := &dev{c: wall}
	go d.reap()
	x.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { d.last.Store(d.c.now().UnixNano()) }})
}
