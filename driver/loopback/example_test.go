package loopback_test

import (
	"fmt"
	"log"

	"verbena/driver/loopback"
	"verbena/ib"
)

// A driver stores the handle of its device. The driver uses the handle for registration and for reports. Consumers
// receive only the device.
func Example() {
	var core ib.Core
	drv := loopback.New("loop0", nil)
	if err := core.Register(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	d := core.Device("loop0")
	port, err := d.QueryPort(1)
	fmt.Println(d.Name(), d.State(), port.State == ib.PortActive, err)
	drv.Handle().SetError()
	_, err = d.AllocPD()
	fmt.Println(d.State(), err)
	fmt.Println(core.Unregister(drv.Handle()), d.State())
	// Output:
	// loop0 active true <nil>
	// in error alloc pd on loop0: input/output error
	// <nil> gone
}
