package engine

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// The limits that QueryDevice reports hold for each program, and for the consumers in this process together. The tables
// of the device have more room, so that a program at its limits leaves objects for others.

// counted is a kind of objects with such a limit.
type counted int

const (
	countPD counted = iota
	countCQ
	countQP
	countSRQ
	countAH
	countFlow // flows and sources of SRD
	numCounted
)

// countLimits holds the limits, which are those of the kernel's rxe, and the names of the kinds in errors.
var countLimits = [numCounted]struct {
	most uint32
	name string
}{
	countPD:  {maxPD, "protection domains"},
	countCQ:  {maxCQ, "completion queues"},
	countQP:  {maxQP, "queue pairs"},
	countSRQ: {maxSRQ, "shared receive queues"},
	countAH:  {maxAH, "address handles"},
	// A flow takes up to 1 KB while it is idle.
	countFlow: {1 << 14, "flows"},
}

// limitCounts lowers the limits to the numbers that the adapter's requests have room for. A program cannot use all of
// them.
func (d *Device) limitCounts() {
	if b := d.traits.QPSlotBits; b != 0 { // more than half, since the low bits of all numbers must differ
		d.most[countQP] = 1<<(b-1) + 1
	}
	if b := d.traits.AHBits; b != 0 {
		d.most[countAH] = 1 << (b - 2)
	}
}

// objectCounts holds the numbers of objects of a program, or of the consumers in this process.
type objectCounts struct {
	most *[numCounted]uint32 // the device's limits
	now  [numCounted]atomic.Uint32
}

// add counts one more object. It returns ENOMEM at the limit. It may not sleep.
func (c *objectCounts) add(k counted) error {
	for {
		n := c.now[k].Load()
		if n >= c.most[k] {
			return fmt.Errorf("the program has %d %s, the limit of the device: %w", n, countLimits[k].name, syscall.ENOMEM)
		}
		if c.now[k].CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// remove counts one object less. It may not sleep.
func (c *objectCounts) remove(k counted) { c.now[k].Add(^uint32(0)) }

// counts returns the counts of a user context; nil means the consumers in this process.
func (d *Device) counts(c *userContext) *objectCounts {
	if c == nil {
		return &d.own
	}
	return &c.counts
}
