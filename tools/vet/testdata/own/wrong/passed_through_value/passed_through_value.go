package passed_through_value

import (
	"verbena/ib"
)

// Dev runs functions by one of two runners in a map.
type Dev struct {
	ib.DriverCQ
	run map[string]func(func())
	in  chan int
}

// New makes a device with two runners.
func New(in chan int) *Dev {
	d := &Dev{in: in}
	d.run = map[string]func(func()){
		"once":  func(f func()) { f() },
		"twice": func(f func()) { f(); f() },
	}
	return d
}

// Poll passes a function that sleeps to one of them.
func (d *Dev) Poll(wc []ib.WC) (int, error) {
	d.run["once"](func() {
		<-d.in // want "nosleep: .*DriverCQ.Poll, may sleep: it receives from a channel"
	})
	return 0, nil
}
