package modeltest

import (
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/umem"
)

var (
	seeds = flag.Int("seeds", 100, "number of seeds")
	first = flag.Uint64("first", 1, "the first seed")
	steps = flag.Int("steps", 80, "calls of each")
)

func loopbackFactory(t testing.TB, virtual bool) DeviceFactory {
	known := NewDriverFeatures()
	return func() (TestedDevice, func() error) {
		var core ib.Core
		h := loopback.New("loop0", nil).Handle()
		if err := core.Register(h); err != nil {
			t.Fatal(err)
		}
		d := h.Device()
		port, err := d.QueryPort(1)
		if err != nil {
			t.Fatal(err)
		}
		g, _ := d.QueryGID(1, 0)
		target := TestedDevice{
			Device: d, Handle: h, GID: g.GID, Port: port,
			Timeout: 60 * time.Second, Virtual: virtual, Abilities: known,
		}
		return target, func() error { return core.Unregister(h) }
	}
}

func TestLoopbackMatchesModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range *seeds {
			if f := Run(loopbackFactory(t, true), *first+uint64(i), *steps, 500); f != nil {
				t.Error(f)
				break
			}
		}
	})
}

// TestLocalMemoryAvoidsSparseArea checks that memory of this process never overlaps a sparse area, wherever the runtime
// places its heap.
func TestLocalMemoryAvoidsSparseArea(t *testing.T) {
	var first uint64
	b, err := allocateLocalMemory(func(addr uint64) bool {
		first = addr
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	b[0], b[len(b)-1] = 1, 1
	addr, err := umem.NewLocal().Add(b)
	if err != nil || addr == first || addr-lowBase < lowSize || addr >= highBase {
		t.Errorf("memory at %#x, %v; the heap is at %#x", addr, err, first)
	}
}
