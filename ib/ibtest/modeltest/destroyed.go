package modeltest

import (
	"fmt"
	"time"

	"verbena/ib/ibtest/model"
)

// RunDestroyPrefixes runs growing prefixes of the call sequence generated from seed: one call, two calls, and so on.
// Each time it destroys all objects right after the last call. Work of that call may still be in progress. Destruction
// must succeed, and neither callbacks nor stores may follow.
func RunDestroyPrefixes(make DeviceFactory, seed uint64, steps int) *RunFailure {
	var calls []call
	f := runOnce(make, func(x *modelRunner) (_ []call, err error) {
		calls, err = runDrawnCalls(x, seed, steps)
		return calls, err
	})
	for n := 1; f == nil && n <= len(calls); n++ {
		f = runAndDestroy(make, calls[:n])
	}
	if f != nil {
		f.Seed, f.Drawn = seed, len(calls)
	}
	return f
}

// runAndDestroy makes calls on a new device and destroys all objects after the last one.
func runAndDestroy(make DeviceFactory, calls []call) *RunFailure {
	t, end := make()
	x, err := newModelRunner(t)
	if err != nil {
		return &RunFailure{Err: err, virtual: t.Virtual}
	}
	last := calls[len(calls)-1]
	for _, c := range calls[:len(calls)-1] {
		if !x.isPossible(c) {
			continue
		}
		if err := x.runCall(c); err != nil { // Run finds differences
			x.waitDeviceIdle()
			x.destroyAll()
			end()
			return nil
		}
	}
	if x.isPossible(last) {
		x.trace = append(x.trace, last.String())
		last.runOnDevice(x)
	}
	x.trace = append(x.trace, "destroy all objects")
	err = x.destroyAll()
	if err == nil {
		err = x.checkDeviceSilent()
	}
	if e := end(); err == nil {
		err = e
	}
	if err == nil {
		return nil
	}
	return &RunFailure{Err: err, Trace: x.trace, calls: calls, virtual: t.Virtual}
}

// checkDeviceSilent reports activity of a device without objects.
func (x *modelRunner) checkDeviceSilent() error {
	memory := make([]byte, localSize)
	copyRacy(memory, x.areas[0].local)
	x.space.takeWrittenPages()
	calls, events := x.callbackCounts()
	if x.Virtual {
		time.Sleep(time.Minute)
	} else {
		time.Sleep(2 * time.Millisecond)
	}
	after := make([]byte, localSize)
	copyRacy(after, x.areas[0].local)
	for i := range after {
		if after[i] != memory[i] {
			return fmt.Errorf("memory: byte at %s was stored when all objects had been destroyed",
				x.describeAddress(x.areas[0].base+uint64(i)))
		}
	}
	for n := range x.space.takeWrittenPages() {
		return fmt.Errorf("memory: page at %s was stored to when all objects had been destroyed",
			x.describeAddress(n*model.PageSize))
	}
	if c, e := x.callbackCounts(); c != calls || e != events {
		return fmt.Errorf("%d calls of handlers and %d events when all objects had been destroyed", c-calls, e-events)
	}
	return nil
}

// callbackCounts returns the numbers of handler calls and of events so far.
func (x *modelRunner) callbackCounts() (calls, events int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.objs {
		calls += o.calls
		events += len(o.seen)
	}
	return calls, events
}
