package ibfake_test

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/ib/ibfake"
)

// A consumer that makes two domains is to leave none behind when the second cannot be had.
func Example() {
	twoDomains := func(d *ib.Device, afterFirst func()) error {
		first, err := d.AllocPD()
		if err != nil {
			return err
		}
		afterFirst()
		if _, err := d.AllocPD(); err != nil {
			first.Dealloc()
			return err
		}
		return nil
	}

	drv := ibfake.New()
	dev := ib.NewDevice("fake0", drv, nil)
	var core ib.Core
	if err := core.Register(dev); err != nil {
		panic(err)
	}
	defer core.Unregister(dev)
	fmt.Println(twoDomains(dev.Device(), func() { drv.Fail(ibfake.AllocPD, syscall.ENOMEM) }))
	fmt.Println("destroyed:", drv.Destroyed(), "left:", dev.Device().Objects())
	// Output:
	// alloc pd on fake0: cannot allocate memory
	// destroyed: [PD] left:
}
