package loopback

import (
	"sync"

	"verbena/ib"
)

// AH is an address handle. It implements ib.DriverAH.
type AH struct {
	dev  *Device
	pd   *pd
	mu   sync.Mutex
	attr ib.AHAttr
}

// addressHandle is the interface through which queue pairs use an address handle.
type addressHandle interface {
	address() ib.AHAttr
	protectionDomain() *pd
}

// CreateAH implements ib.AHDriver. CreateAH may not sleep.
func (d *Device) CreateAH(p ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	a := &AH{dev: d, pd: domainOf(p)}
	return a, a.Modify(attr)
}

func (a *AH) address() ib.AHAttr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attr
}

func (a *AH) protectionDomain() *pd { return a.pd }

// Modify implements ib.DriverAH. Modify may not sleep.
func (a *AH) Modify(attr *ib.AHAttr) error {
	if err := a.dev.checkDestinationAddress(attr); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attr = *attr
	return nil
}

// Query implements ib.DriverAH. Query may not sleep.
func (a *AH) Query() (ib.AHAttr, error) { return a.address(), nil }

// Destroy implements ib.DriverAH. Destroy may not sleep.
func (a *AH) Destroy() error { return nil }
