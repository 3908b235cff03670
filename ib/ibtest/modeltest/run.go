package modeltest

import (
	"fmt"
	"strings"
	"time"

	"verbena/ib/ibtest/model"
)

// RunFailure is a run in which device and model differ.
type RunFailure struct {
	Seed  uint64
	Err   error
	Drawn int // number of calls before the failure was shortened
	Trace []string
	calls []call

	virtual bool // see TestedDevice.Virtual
}

// String describes the failure with all calls that led to it.
func (f *RunFailure) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %v\n%d calls, of %d that were drawn:\n", f.Seed, f.Err, len(f.calls), f.Drawn)
	for i, line := range f.Trace {
		fmt.Fprintf(&b, "  %2d  %s\n", i+1, line)
	}
	return b.String()
}

// DeviceFactory creates a device without objects for one run. The returned function removes the device.
type DeviceFactory func() (TestedDevice, func() error)

// Run runs the call sequence generated from seed on a device and on the model. It returns nil if the results agree. It
// shortens a failing sequence in at most shorten runs.
func Run(make DeviceFactory, seed uint64, steps, shorten int) *RunFailure {
	f := runOnce(make, func(x *modelRunner) ([]call, error) { return runDrawnCalls(x, seed, steps) })
	if f == nil {
		return nil
	}
	f.Seed, f.Drawn = seed, len(f.calls)
	return shortenFailure(make, f, shorten)
}

// RunOn runs the call sequence generated from seed on a device that other threads also use. It does not move the device
// to the error state.
func RunOn(t TestedDevice, seed uint64, steps int) *RunFailure {
	t.Shared = true
	f := runOnce(func() (TestedDevice, func() error) { return t, func() error { return nil } },
		func(x *modelRunner) ([]call,
			error) {
			return runDrawnCalls(x, seed, steps)
		})
	if f != nil {
		f.Seed, f.Drawn = seed, len(f.calls)
	}
	return f
}

// runOnce runs a call sequence on a new device.
func runOnce(make DeviceFactory, calls func(x *modelRunner) ([]call, error)) *RunFailure {
	t, end := make()
	x, err := newModelRunner(t)
	if err != nil {
		return &RunFailure{Err: err, virtual: t.Virtual}
	}
	list, err := calls(x)
	switch err {
	case nil:
		err = x.compareAndDestroy()
	case errUndefinedResult:
		x.waitDeviceIdle()
		err = x.destroyAll()
	}
	if err == nil {
		err = end()
	} else {
		x.destroyAll()
		end()
	}
	if err == nil {
		return nil
	}
	return &RunFailure{Err: err, Trace: x.trace, calls: list, virtual: t.Virtual}
}

// runDrawnCalls generates the call sequence from seed, and runs it.
func runDrawnCalls(x *modelRunner, seed uint64, steps int) (calls []call, err error) {
	d := newCallDrawer(x, seed, steps)
	for n := 0; n < steps+min(x.resets, 1)*steps/2; n++ { // the recovered device needs calls before it is usable
		c := d.nextCall()
		if c == nil {
			break
		}
		calls = append(calls, c)
		if err := x.runCall(c); err != nil {
			return calls, err
		}
	}
	return calls, nil
}

// replayCalls makes those calls of a list that are possible.
func replayCalls(x *modelRunner, list []call) (calls []call, err error) {
	for _, c := range list {
		if !x.isPossible(c) {
			continue
		}
		calls = append(calls, c)
		if err := x.runCall(c); err != nil {
			return calls, err
		}
	}
	return calls, nil
}

// waitDeviceIdle waits until the device is idle. It is for devices with activity that cannot be observed.
func (x *modelRunner) waitDeviceIdle() {
	if x.Virtual {
		time.Sleep(time.Minute)
	}
}

// compareAndDestroy compares all queues and attributes, and destroys all objects.
func (x *modelRunner) compareAndDestroy() error {
	x.trace = append(x.trace, "the end")
	for _, id := range filterIDs(x.m.Queues.QPs, acceptAnyObject[*model.QP]) {
		c := queryQP{id}
		g := c.runOnDevice(x)
		if d := compareResult(g, c.runOnModel(x, x.m, &g)); d != "" {
			return fmt.Errorf("%v: %s", c, d)
		}
	}
	for _, o := range x.objs {
		o.lazy = false
	}
	if d := x.awaitExpectedState(); d != nil && x.m.Call.Open == "" {
		return fmt.Errorf("at the end: %s", d.what)
	}
	return x.destroyAll()
}
