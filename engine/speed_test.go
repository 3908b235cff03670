package engine

import (
	"errors"
	"syscall"
	"testing"

	"verbena/uapi"
)

// TestPortSpeed tests the width, the speed and the effective speed of a port for each speed of its interface, and that
// the next device of the adapter begins with the speed.
func TestPortSpeed(t *testing.T) {
	h := newHost(t, "10.0.0.1")
	defer h.close()
	for _, c := range []struct {
		bps   uint64
		width uapi.PortWidth
		speed uapi.PortSpeed
		units uint64 // effective speed in units of 100 Mb/s
	}{
		{0, uapi.PortWidth1X, uapi.PortSpeedSDR, 25},
		{1e3, uapi.PortWidth1X, uapi.PortSpeedSDR, 1},
		{1e9, uapi.PortWidth1X, uapi.PortSpeedSDR, 10},
		{1e9 + 1, uapi.PortWidth1X, uapi.PortSpeedFDR10, 10},
		{10e9, uapi.PortWidth1X, uapi.PortSpeedFDR10, 100},
		{20e9, uapi.PortWidth4X, uapi.PortSpeedDDR, 200},
		{25e9, uapi.PortWidth1X, uapi.PortSpeedEDR, 250},
		{40e9, uapi.PortWidth4X, uapi.PortSpeedFDR10, 400},
		{50e9, uapi.PortWidth4X, uapi.PortSpeedEDR, 500},
		{100e9, uapi.PortWidth4X, uapi.PortSpeedEDR, 1000},
		{200e9, uapi.PortWidth4X, uapi.PortSpeedHDR, 2000},
		{400e9, uapi.PortWidth4X, uapi.PortSpeedNDR, 4000},
		{800e9, uapi.PortWidth4X, uapi.PortSpeedXDR, 8000},
		{1e12, uapi.PortWidth8X, uapi.PortSpeedXDR, 10000},
		{1e15, uapi.PortWidth8X, uapi.PortSpeedXDR, 10000000},
	} {
		i := iface()
		i.Speed = c.bps
		h.dev.SetInterface(i, ips("10.0.0.1"))
		a, err := h.dev.IB().QueryPort(1)
		check(t, err)
		if a.ActiveWidth != uint8(c.width) || a.ActiveSpeed != uint16(c.speed) {
			t.Errorf("%d bit/s: got width %d and speed %d, want %d and %d", c.bps, a.ActiveWidth, a.ActiveSpeed, c.width,
				c.speed)
		}
		if n, err := h.dev.IB().QueryPortSpeed(1); err != nil || n != c.units {
			t.Errorf("%d bit/s: got effective speed %d and error %v, want %d", c.bps, n, err, c.units)
		}
		if next := h.dev.Hardware().cfg.Netdev.Speed; next != c.bps {
			t.Errorf("speed of the next device: got %d, want %d", next, c.bps)
		}
	}
	for _, port := range []int{0, 2} {
		if _, err := h.dev.IB().QueryPortSpeed(port); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("speed of port %d: got %v, want EINVAL", port, err)
		}
	}
}
