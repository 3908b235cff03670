package ibfake_test

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/ib/ibfake"
)

// A consumer that allocates two domains must free the first domain if the second allocation fails.
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
	fmt.Println(twoDomains(dev.Device(), func() { drv.FailMethod(ibfake.AllocPD, syscall.ENOMEM) }))
	fmt.Println("destroyed:", drv.TakeDestroyedKinds(), "left:", dev.Device().Objects())
	// Output:
	// alloc pd on fake0: cannot allocate memory
	// destroyed: [PD] left:
}
