package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// The limits that QueryDevice reports hold for each program, and for the consumers in this process together. The tables
// of the device have more room, so that a program at its limits leaves objects for others.

// counted is a kind of object with such a limit.
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

// limitCounts lowers the limits to the numbers that fit into the adapter's requests. One program cannot use all of
// these numbers.
func (d *Device) limitCounts() {
	if b := d.traits.QPSlotBits; b != 0 { // more than half, since the low bits of all numbers must differ
		d.most[countQP] = 1<<(b-1) + 1
		d.shares.room = 1<<b - minQPSlot
	}
	d.shares.name = countLimits[countQP].name
	d.flows = userShares{room: allFlows, name: countLimits[countFlow].name}
	d.requests = userShares{room: allRequests, name: "requests of SRD"}
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

// The next constants bound the memory for SRD of all users of a device.
const (
	// allFlows is the room for flows and sources. Each takes up to 1 KB while it is idle.
	allFlows = 1 << 16
	// allRequests is the room for send work requests that were fetched, except the first of each queue pair. Each takes
	// about 0.7 KB.
	allRequests = 1 << 18
)

// userShares divides a limited room among users. A user gets at most 5/8 of the room that the others leave. Each
// further user therefore finds some.
type userShares struct {
	room uint32 // 0: no limit
	name string // plural, in errors

	mu  sync.Mutex
	all uint32
	of  map[any]uint32 // by owner
}

// add counts one more object of an owner. It returns ENOMEM beyond the owner's share. It may not sleep.
func (s *userShares) add(owner any) error {
	if s.room == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.of[owner]
	if left := s.room - (s.all - n); n >= left/8*5 {
		return fmt.Errorf("the user has %d %s on this device, and the device keeps %d for other users: %w",
			n, s.name, left-n, syscall.ENOMEM)
	}
	if s.of == nil {
		s.of = map[any]uint32{}
	}
	s.of[owner] = n + 1
	s.all++
	return nil
}

// remove counts one object less. It may not sleep.
func (s *userShares) remove(owner any) {
	if s.room == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[owner]--; s.of[owner] == 0 {
		delete(s.of, owner)
	}
}

// count returns the number of objects of an owner; 0 without a limit.
func (s *userShares) count(owner any) uint32 {
	if s.room == 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[owner]
}

// count counts the queue pair against its program and its user. It returns ENOMEM at a limit.
func (qp *QP) count() error {
	if err := qp.counts.add(countQP); err != nil {
		return err
	}
	if err := qp.dev.shares.add(qp.owner); err != nil {
		qp.counts.remove(countQP)
		return err
	}
	return nil
}

// uncount undoes count.
func (qp *QP) uncount() {
	qp.dev.shares.remove(qp.owner)
	qp.counts.remove(countQP)
}

// ownerOf returns the user of a context, or the context itself if its user is unknown.
func ownerOf(c ib.UserContext) any {
	if o, ok := c.(ib.OwnedContext); ok {
		return o.Owner()
	}
	return c
}

// counts returns the counts of a user context; nil means the consumers in this process.
func (d *Device) counts(c *userContext) *objectCounts {
	if c == nil {
		return &d.own
	}
	return &c.counts
}
