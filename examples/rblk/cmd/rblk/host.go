package main

import (
	"context"
	"log"
	"math/rand/v2"
	"net/netip"
	"time"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/slot"
	"verbena/link"
	"verbena/netdev"
	"verbena/rdmacm"
)

// host is a midlayer with a connection manager and one slot. The test can make the adapter in the slot fail.
type host struct {
	core    ib.Core
	manager *rdmacm.Manager
	hw      *rxe.Hardware
	slot    *slot.Slot
}

func newHost(addr netip.Addr) (*host, error) {
	dev, err := netdev.ByAddr(addr)
	if err != nil {
		return nil, err
	}
	h := &host{hw: rxe.NewHardware(rxe.Config{
		Name: "rxe0", Netdev: *dev, Addrs: []netip.Addr{addr}, Network: link.UDP(link.UDPOptions{}), Fabric: &rxe.Fabric{},
		Logf: log.Printf,
	})}
	// A connection manager message that is lost while the peer's device is down is retransmitted after 0.27 s.
	if h.manager, err = rdmacm.New(&h.core, rdmacm.Config{Timeout: 16}); err != nil {
		return nil, err
	}
	h.slot = slot.New(&h.core, "rxe0", h.hw, nil)
	if err := h.slot.Plug(); err != nil {
		h.manager.Close()
		return nil, err
	}
	return h, nil
}

func (h *host) close() {
	h.manager.Close()
	if err := h.slot.Close(); err != nil {
		log.Print(err)
	}
}

// resetDevice resets a device that works, that hangs, or that does not answer for a moment.
func (h *host) resetDevice() error {
	switch rand.N(3) {
	case 1:
		h.hw.Hang()
		time.Sleep(rand.N(10 * time.Millisecond))
	case 2:
		h.hw.Disconnect()
		time.AfterFunc(rand.N(10*time.Millisecond), h.hw.Return)
	}
	return h.slot.Reset(context.Background())
}

// startResets resets the device at random moments until its result stop is called, if every is positive. The function
// stop returns the number of resets.
func (h *host) startResets(every time.Duration) (stop func() int) {
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
			if err := h.resetDevice(); err != nil {
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
