package ibtest

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
)

// correctDrivers keep the contract in unusual ways.
var correctDrivers = []struct {
	name  string
	alter func(d *wrongDriver)
}{
	{"smallest", func(d *wrongDriver) { setDeviceLimits(d, 1, 16, 256) }},
	{"small, with few queue pairs", func(d *wrongDriver) {
		setDeviceLimits(d, 2, 32, 512)
		const most = 64
		limits, createQP := d.limits, d.createQP
		d.limits = func(a *ib.DeviceAttr) {
			limits(a)
			a.MaxQP = most
		}
		d.createQP = func(qp ib.QPHandle, init *ib.DriverQPInit) error {
			if len(cloneList(d, &d.qps)) >= most {
				return fmt.Errorf("%d queue pairs: %w", most, syscall.ENOMEM)
			}
			return createQP(qp, init)
		}
	}},
	{"the wrong drivers without a defect", func(*wrongDriver) {}},
}

// TestCorrectDriversPass checks that the suite passes on every driver that keeps the contract.
func TestCorrectDriversPass(t *testing.T) {
	for i, r := range correctDrivers {
		if testing.Short() && i > 0 {
			continue // each run of the suite takes seconds
		}
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			Run(t, func(t testing.TB) *ib.DeviceHandle {
				d := newWrongDriver(t)
				r.alter(d)
				return d.dev
			}, Bubble(), Load(1), Seeds(100))
		})
	}
}

// TestGrowthIsMeasuredInRealTime checks that the search for leaks waits for the growth of the rest of the process. The
// rest does not run on the virtual time of a bubble.
func TestGrowthIsMeasuredInRealTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 20 * time.Millisecond
		began := systemTime()
		growthDuring(period)
		if took := systemTime() - began; took < period {
			t.Errorf("growthDuring(%v): it took %v", period, took)
		}
	})
}

// setDeviceLimits gives the device the limits of small hardware for SEND.
func setDeviceLimits(d *wrongDriver, elements, requests, completions int) {
	d.limits = func(a *ib.DeviceAttr) {
		a.MaxSendSGE, a.MaxRecvSGE, a.MaxSGERd, a.MaxSRQSGE = elements, elements, 1, elements
		a.MaxQPWR, a.MaxSRQWR, a.MaxCQE = requests, requests, completions
	}
	refuse := func(what string, n, limit int) error {
		if n > limit {
			return fmt.Errorf("%d %s exceed %d: %w", n, what, limit, syscall.EINVAL)
		}
		return nil
	}
	d.createCQ = func(_ ib.CQHandle, a ib.CQAttr) error { return refuse("completions", a.Entries, completions) }
	d.resize = func(c *wrongCQ, n int) error {
		if err := refuse("completions", n, completions); err != nil {
			return err
		}
		return c.CQ.Resize(n, nil)
	}
	d.createQP = func(_ ib.QPHandle, init *ib.DriverQPInit) error {
		c := &init.Cap
		for _, n := range []uint32{c.MaxSendSGE, c.MaxRecvSGE} {
			if err := refuse("elements", int(n), elements); err != nil {
				return err
			}
		}
		for _, n := range []uint32{c.MaxSendWR, c.MaxRecvWR} {
			if err := refuse("work requests", int(n), requests); err != nil {
				return err
			}
		}
		return nil
	}
	d.createSRQ = func(a *ib.SRQAttr) error {
		if err := refuse("elements", int(a.MaxSGE), elements); err != nil {
			return err
		}
		return refuse("work requests", int(a.MaxWR), requests)
	}
	d.modifySRQ = func(s *wrongSRQ, a *ib.SRQAttr, m ib.SRQAttrMask) error {
		if m&ib.SRQAttrMaxWR != 0 {
			if err := refuse("work requests", int(a.MaxWR), requests); err != nil {
				return err
			}
		}
		return s.SRQ.Modify(a, m, nil)
	}
}
