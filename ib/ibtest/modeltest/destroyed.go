package modeltest

import (
	"fmt"
	"time"

	"verbena/ib/ibtest/model"
)

// RunDestroyPrefixes runs growing prefixes of the call sequence generated from seed: one call, two calls, and so on.
// Each time it destroys all objects right after the last call. Work of that call may still be in progress. Destruction
// must succeed, and neither callbacks nor stores may follow.
func RunDestroyPrefixes(make Factory, seed uint64, steps int) *Failure {
	var calls []call
	f := once(make, func(x *runner) (_ []call, err error) {
		calls, err = drawn(x, seed, steps)
		return calls, err
	})
	for n := 1; f == nil && n <= len(calls); n++ {
		f = destroyed(make, calls[:n])
	}
	if f != nil {
		f.Seed, f.Drawn = seed, len(calls)
	}
	return f
}

// destroyed makes calls on a new device and destroys all objects after the last one.
func destroyed(make Factory, calls []call) *Failure {
	t, end := make()
	x, err := newRunner(t)
	if err != nil {
		return &Failure{Err: err, virtual: t.Virtual}
	}
	last := calls[len(calls)-1]
	for _, c := range calls[:len(calls)-1] {
		if !x.fit(c) {
			continue
		}
		if err := x.make(c); err != nil { // Run finds differences
			x.quiet()
			x.finish()
			end()
			return nil
		}
	}
	if x.fit(last) {
		x.trace = append(x.trace, last.String())
		last.device(x)
	}
	x.trace = append(x.trace, "destroy all objects")
	err = x.finish()
	if err == nil {
		err = x.silent()
	}
	if e := end(); err == nil {
		err = e
	}
	if err == nil {
		return nil
	}
	return &Failure{Err: err, Trace: x.trace, calls: calls, virtual: t.Virtual}
}

// silent reports activity of a device without objects.
func (x *runner) silent() error {
	memory := make([]byte, localSize)
	move(memory, x.areas[0].local)
	x.space.fresh()
	calls, events := x.callbacks()
	if x.Virtual {
		time.Sleep(time.Minute)
	} else {
		time.Sleep(2 * time.Millisecond)
	}
	after := make([]byte, localSize)
	move(after, x.areas[0].local)
	for i := range after {
		if after[i] != memory[i] {
			return fmt.Errorf("memory: byte at %s was stored when all objects had been destroyed",
				x.where(x.areas[0].base+uint64(i)))
		}
	}
	for n := range x.space.fresh() {
		return fmt.Errorf("memory: page at %s was stored to when all objects had been destroyed", x.where(n*model.PageSize))
	}
	if c, e := x.callbacks(); c != calls || e != events {
		return fmt.Errorf("%d calls of handlers and %d events when all objects had been destroyed", c-calls, e-events)
	}
	return nil
}

// callbacks returns the numbers of handler calls and of events so far.
func (x *runner) callbacks() (calls, events int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.objs {
		calls += o.calls
		events += len(o.seen)
	}
	return calls, events
}
