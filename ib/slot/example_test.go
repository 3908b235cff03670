package slot_test

import (
	"context"
	"fmt"
	"log"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/slot"
)

// adapter is hardware without state. A reset of an adapter has no effect.
type adapter struct{}

func (adapter) Probe() (slot.Device, error) { return loopbackDevice{loopback.New("loop0", nil)}, nil }
func (adapter) Reset(context.Context) error { return nil }
func (adapter) Await(context.Context) error { return nil }

// loopbackDevice is a device of the adapter, from Probe to Close.
type loopbackDevice struct{ *loopback.Device }

func (l loopbackDevice) Close() error { return l.Handle().Dealloc() }

// A slot resets a device. The clients are removed from the old device and added to the new device.
func ExampleSlot_Reset() {
	var core ib.Core
	client := &ib.Client{
		Name: "watcher",
		Add: func(d *ib.Device) (any, error) {
			fmt.Println("add", d.Name())
			return d.OnEvent(func(e ib.Event) { fmt.Println(e.Type) }), nil
		},
		Remove: func(d *ib.Device, stop any) {
			stop.(func())()
			fmt.Printf("remove %s, %v\n", d.Name(), d.State())
		},
	}
	if err := core.RegisterClient(client); err != nil {
		log.Fatal(err)
	}
	defer core.UnregisterClient(client)
	s := slot.New(&core, "loop0", adapter{}, nil)
	if err := s.Plug(); err != nil {
		log.Fatal(err)
	}
	if err := s.Reset(context.Background()); err != nil {
		log.Fatal(err)
	}
	if err := s.Unplug(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// add loop0
	// device fatal error
	// remove loop0, in error
	// add loop0
	// remove loop0, in error
}
