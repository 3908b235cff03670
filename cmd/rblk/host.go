package main

import (
	"context"
	"log"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"verbena/driver/rxe"
	"verbena/driver/rxe/wire"
	"verbena/driver/rxe/wire/netdev"
	"verbena/ib"
)

// host is a midlayer with one software device, which can be reset.
type host struct {
	core ib.Core
	addr netip.Addr

	mu  sync.Mutex
	dev *rxe.Device // nil: none
}

func newHost(addr netip.Addr) (*host, error) {
	h := &host{addr: addr}
	return h, h.plug()
}

func (h *host) plug() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	dev, err := netdev.ByAddr(h.addr)
	if err != nil {
		return err
	}
	d, err := rxe.New(rxe.Config{
		Name: "rxe0", Netdev: *dev, Addrs: []netip.Addr{h.addr}, Network: wire.UDP(wire.UDPOptions{}), Fabric: &rxe.Fabric{},
		Logf: log.Printf,
	})
	if err != nil {
		return err
	}
	if err := h.core.Register(d.IB()); err != nil {
		d.Close()
		return err
	}
	h.dev = d
	return nil
}

func (h *host) unplug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dev == nil {
		return
	}
	if err := h.core.Unregister(h.dev.IB()); err != nil {
		log.Print(err)
	}
	h.dev.Close()
	h.dev = nil
}

func (h *host) close() { h.unplug() }

// reset is a fatal error, followed by the model's flow: error state, the clients' shutdown, and a recovered device.
func (h *host) reset() error {
	h.mu.Lock()
	if d := h.dev; d != nil {
		d.IB().SetError()
		d.IB().DispatchEvent(ib.EventDeviceFatal, 0)
	}
	h.mu.Unlock()
	h.unplug()
	return h.plug()
}

// resetting resets the device at random moments, if every is positive, until stop is called, which tells how often.
func (h *host) resetting(every time.Duration) (stop func() int) {
	if every <= 0 {
		return func() int { return 0 }
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-ctx.Done():
				done <- n
				return
			case <-time.After(rand.N(2 * every)):
			}
			if err := h.reset(); err != nil {
				log.Printf("reset: %v", err)
			}
			n++
		}
	}()
	return func() int {
		cancel()
		return <-done
	}
}
