package check_test

import (
	"fmt"
	"log"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
)

// In checked mode, a violation of the contract is reported with the stacks of both sides.
func Example() {
	var core ib.Core
	check.On(&core, check.Config{Report: func(v check.Violation) { fmt.Printf("%v: %s\n", v.Rule, v.What) }})
	drv := loopback.New("loop0", nil)
	if err := core.Register(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	d, done := drv.IB(), make(chan struct{})
	stop := d.OnEvent(func(ib.Event) {
		defer close(done)
		d.QueryPort(1) // QueryPort may sleep, but an event function may not
	})
	drv.Handle().DispatchEvent(ib.EventPortErr, 1)
	<-done
	stop()
	if _, err := d.AllocPD(); err != nil { // the domain is never deallocated
		log.Fatal(err)
	}
	fmt.Println(core.Unregister(drv.Handle()))
	// Output:
	// sleep-in-callback: Device.QueryPort, which may sleep, called in the function for the event "port error"
	// left-behind: objects left when Core.Unregister returned: PD
	// unregister device loop0: left behind by clients: 1 PD: device or resource busy
}
