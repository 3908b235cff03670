package faulty

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
)

func TestDisk(t *testing.T) {
	var core ib.Core
	ready := make(chan *Disk, 1)
	client := Client(ready)
	if err := core.RegisterClient(client); err != nil {
		t.Fatal(err)
	}
	defer core.UnregisterClient(client)
	d := loopback.New("loop0", t.Logf)
	if err := core.Register(d.Handle()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := core.Unregister(d.Handle()); err != nil {
			t.Error(err)
		}
	}()
	var k *Disk
	select {
	case k = <-ready:
	default:
		t.Fatal("no disk")
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for i := range 20 {
				b, err := k.Read(i%blocks, 10*time.Second)
				if errors.Is(err, syscall.ETIMEDOUT) {
					continue // the caller may read again
				}
				if err != nil || b[0] != byte(i%blocks) {
					t.Errorf("block %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	for range 60 {
		k.Report()
		time.Sleep(100 * time.Microsecond)
	}
}

// TestTrace traces until the device is gone.
func TestTrace(t *testing.T) {
	var core ib.Core
	ready := make(chan *Disk, 1)
	if err := core.RegisterClient(Client(ready)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		d := loopback.New(fmt.Sprint("loop", i), t.Logf)
		if err := core.Register(d.Handle()); err != nil {
			t.Fatal(err)
		}
		var k *Disk
		select {
		case k = <-ready:
		default:
			t.Fatal("no disk")
		}
		var stop atomic.Bool
		var tracers sync.WaitGroup
		for range 2 {
			tracers.Go(func() {
				for !stop.Load() {
					k.Trace()
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		if err := core.Unregister(d.Handle()); err != nil {
			t.Error(err)
		}
		stop.Store(true)
		tracers.Wait()
	}
}

// TestAddress does not know whether the Add of the client has failed.
func TestAddress(t *testing.T) {
	var core ib.Core
	d := loopback.New("loop0", t.Logf)
	if err := core.Register(d.Handle()); err != nil {
		t.Fatal(err)
	}
	defer core.Unregister(d.Handle())
	var a Address
	if err := core.RegisterClient(a.Client()); err != nil {
		t.Fatal(err)
	}
	if err := a.Query(); err != nil {
		t.Error(err)
	}
}

// TestSend does not close the batch after an error. This is a mistake of the test.
func TestSend(t *testing.T) {
	b := openBatch(t)
	defer b.Close()
	for range 40 {
		if err := b.Send(records); err != nil {
			t.Error(err)
		}
	}
}

// TestBatch writes batches of records. A post that fails is repeated once.
func TestBatch(t *testing.T) {
	b := openBatch(t)
	defer b.Close()
	for i := range 40 {
		n := 2 + i%(records-1)
		if b.Post(n) != nil {
			if err := b.Post(n); err != nil {
				t.Error(err)
			}
		}
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMeter writes with few credits.
func TestMeter(t *testing.T) {
	m, err := OpenMeter(newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if err := m.Write(); err != nil {
			t.Error(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// newDevice returns a registered device.
func newDevice(t *testing.T) *ib.Device {
	t.Helper()
	var core ib.Core
	d := loopback.New("loop0", t.Logf)
	if err := core.Register(d.Handle()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.Unregister(d.Handle()); err != nil {
			t.Error(err)
		}
	})
	return d.IB()
}

func openBatch(t *testing.T) *Batch {
	t.Helper()
	b, err := OpenBatch(newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
