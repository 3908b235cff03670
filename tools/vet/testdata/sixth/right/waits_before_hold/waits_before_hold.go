// Package waits_before_hold waits before it holds callbacks, and after it has run them.
package waits_before_hold

import (
	"sync"
	"time"

	"verbena/ib"
)

type port struct {
	devs   []*ib.DeviceHandle
	frames chan []byte
	mu     sync.Mutex
	count  int
}

func (p *port) Serve() {
	for f := range p.frames {
		p.one(f)
		time.Sleep(time.Millisecond)
	}
}

func (p *port) one(f []byte) {
	d := p.devs[0]
	d.HoldCallbacks()
	defer d.RunCallbacks()
	p.mu.Lock()
	p.count += len(f)
	p.mu.Unlock()
	select {
	case p.frames <- f:
	default:
	}
	go func() { p.frames <- f }()
}

// All holds the callbacks of all devices.
func (p *port) All(f func()) {
	for _, d := range p.devs {
		d.HoldCallbacks()
	}
	f()
	for _, d := range p.devs {
		d.RunCallbacks()
	}
	<-p.frames
}

func (p *port) Train(h *ib.Hold) {
	for {
		f := <-p.frames
		h.Add(p.devs[0])
		p.mu.Lock()
		p.count += len(f)
		p.mu.Unlock()
		h.Run()
	}
}
