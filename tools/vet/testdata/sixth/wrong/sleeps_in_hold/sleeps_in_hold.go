// Package sleeps_in_hold has threads that sleep while they hold callbacks, and threads that run callbacks with locks.
package sleeps_in_hold

import (
	"net"
	"sync"
	"time"

	"verbena/ib"
)

type port struct {
	dev    *ib.DeviceHandle
	conn   net.Conn
	frames chan []byte
	mu     sync.Mutex
	count  int
}

func (p *port) begin() func() {
	p.dev.HoldCallbacks()
	return p.dev.RunCallbacks
}

func (p *port) quietly(f func()) {
	p.dev.HoldCallbacks()
	defer p.dev.RunCallbacks()
	f()
}

func (p *port) Pause() {
	p.quietly(func() { // want "nosleep: .* may sleep between HoldCallbacks and RunCallbacks"
		time.Sleep(time.Millisecond)
	})
}

func (p *port) read(b []byte) {
	n, err := p.conn.Read(b)
	if err == nil {
		p.count += n
	}
}

func (p *port) Serve() {
	b := make([]byte, 2048)
	for {
		p.dev.HoldCallbacks()
		p.read(b) // want "nosleep: .* may sleep between HoldCallbacks and RunCallbacks: it calls .*read"
		p.dev.RunCallbacks()
	}
}

func (p *port) Next() {
	var h ib.Hold
	h.Add(p.dev)
	select { // want "nosleep: .* may sleep between Hold.Add and Hold.Run: it waits in select"
	case f := <-p.frames:
		p.count += len(f)
	case <-time.After(time.Second):
	}
	h.Run()
}

func (p *port) Locked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dev.HoldCallbacks()
	p.count++
	p.dev.RunCallbacks() // want "callback: .* calls .*RunCallbacks, which runs callbacks, with .*port.mu held"
}

func (p *port) flush() {
	p.dev.HoldCallbacks()
	p.dev.RunCallbacks()
}

func (p *port) Helper() {
	p.mu.Lock()
	p.flush() // want "callback: .* calls .*flush, which runs callbacks, with .*port.mu held"
	p.mu.Unlock()
}
