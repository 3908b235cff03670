// Package returned_unlock is the receive thread of a driver.
package returned_unlock

import (
	"net"
	"sync"

	"verbena/ib"
)

// Port is a port of a device.
type Port struct {
	mu  sync.Mutex
	h   *ib.DeviceHandle
	cqs map[byte]ib.CQHandle
}

// New makes a port.
func New(h *ib.DeviceHandle) *Port { return &Port{h: h, cqs: map[byte]ib.CQHandle{}} }

// AddCQ adds a completion queue.
func (p *Port) AddCQ(n byte, h ib.CQHandle) {
	defer p.lock()()
	p.cqs[n] = h
}

func (p *Port) lock() (unlock func()) {
	p.mu.Lock()
	return p.mu.Unlock
}

func (p *Port) hold() (run func()) {
	p.h.HoldCallbacks()
	return p.h.RunCallbacks
}

// Serve receives packets until the connection ends.
func (p *Port) Serve(c net.PacketConn) error {
	buf := make([]byte, 2048)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		p.packet(buf[:n])
	}
}

// packet runs the callbacks after the unlock: deferred calls run in the reverse order.
func (p *Port) packet(b []byte) {
	defer p.hold()()
	defer p.lock()()
	if len(b) == 0 {
		return
	}
	if h, ok := p.cqs[b[0]]; ok {
		h.Completed()
	}
}
