package weak

import (
	"slices"
	"sync"
	"time"

	"verbena/ib"
)

// Config chooses what a weak device does.
type Config struct {
	Seed uint64
	// Choices are the choices that are on; 0: All.
	Choices Set
}

// step is the time after which something that is delayed comes a step nearer without a poll.
const step = 200 * time.Microsecond

// driver is a driver that takes the least convenient choices around another one.
type driver struct {
	ib.Driver
	Config

	// mu guards the tables. Nothing is called under it.
	mu     sync.Mutex
	made   uint64 // queue pairs so far
	queues uint64 // completion queues so far
	last   uint64 // the last number of a request
	reqs   map[uint64]*request
	qps    map[*ib.QP]*qp
	later  map[*qp]struct{} // those with sends that are held back
	cqs    map[*cq]struct{}
	mrs    map[uint32]*mr // by the local keys of the inner driver
	holds  map[kind]bool  // requests that the inner driver takes
	slept  uint64         // calls of slow

	timer   sync.Mutex // taken under the inner driver's locks
	ticking bool
	waiting []*qp // with events that are held back
}

// New returns a driver that wraps d. The device must not have been registered.
func New(d ib.Driver, c Config) ib.Driver {
	if c.Choices == 0 {
		c.Choices = All
	}
	w := &driver{
		Driver: d, Config: c, reqs: map[uint64]*request{}, qps: map[*ib.QP]*qp{}, later: map[*qp]struct{}{}, cqs: map[*cq]struct{}{},
		mrs: map[uint32]*mr{}, holds: map[kind]bool{},
	}
	if r, ok := ib.As[ib.NumberReuser](d); ok && c.Choices.Has(EarlyNumbers) {
		r.ReuseNumbers()
	}
	return w
}

// Unwrap returns the inner driver, whose abilities are those of this one.
func (d *driver) Unwrap() ib.Driver { return d.Driver }

func (d *driver) has(c Choice) bool { return d.Choices.Has(c) }

// slow is called by each method that may sleep. One call in eight takes long, so that tests with many calls end.
func (d *driver) slow() {
	if !d.has(SlowMethods) {
		return
	}
	d.mu.Lock()
	d.slept++
	n := d.slept
	d.mu.Unlock()
	if d.draw(SlowMethods, 0, n, 8) == 0 {
		time.Sleep(10 * step)
	}
}

// QueryDevice implements ib.Driver.
func (d *driver) QueryDevice() (ib.DeviceAttr, error) {
	d.slow()
	return d.Driver.QueryDevice()
}

// QueryPort implements ib.Driver.
func (d *driver) QueryPort(port int) (ib.PortAttr, error) {
	d.slow()
	return d.Driver.QueryPort(port)
}

// QueryGID implements ib.Driver.
func (d *driver) QueryGID(port, index int) (ib.GIDEntry, error) {
	d.slow()
	return d.Driver.QueryGID(port, index)
}

// QueryPKey implements ib.Driver.
func (d *driver) QueryPKey(port, index int) (uint16, error) {
	d.slow()
	return d.Driver.QueryPKey(port, index)
}

// EnterError implements ib.Driver. The requests that are held back are flushed later.
func (d *driver) EnterError() {
	d.Driver.EnterError()
	d.kick()
}

// request is a work request that the inner driver knows by a number of this one's.
type request struct {
	id       uint64 // the consumer's
	num      uint64 // the inner driver's
	qp       *qp    // nil: a receive of a shared queue
	send     bool
	signaled bool
	seq      uint64 // in its queue
	targets  []target
	landed   bool
	hidden   bool // unsignaled, but signaled in the inner driver: the consumer gets no completion, unless it fails
	arrived  bool // hidden, and completed in the inner driver; under cq.mu

	wr    ib.SendWR // of a send that is held back
	ownAH bool      // its address handle is a copy
	wait  int       // steps before it begins
}

// enter gives a request a number.
func (d *driver) enter(r *request) *request {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	r.num = d.last
	d.reqs[r.num] = r
	return r
}

// drop forgets requests that will not complete.
func (d *driver) drop(rs ...*request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range rs {
		delete(d.reqs, r.num)
	}
}

// kick makes tick run after a step.
func (d *driver) kick() {
	d.timer.Lock()
	defer d.timer.Unlock()
	d.start()
}

//verbena:held timer
func (d *driver) start() {
	if !d.ticking {
		d.ticking = true
		time.AfterFunc(step, d.tick)
	}
}

// wait makes tick report the events of a queue pair.
func (d *driver) wait(q *qp) {
	d.timer.Lock()
	defer d.timer.Unlock()
	if !slices.Contains(d.waiting, q) {
		d.waiting = append(d.waiting, q)
	}
	d.start()
}

// tick is a step of all that is delayed.
func (d *driver) tick() {
	d.timer.Lock()
	d.ticking = false
	waiting := d.waiting
	d.waiting = nil
	d.timer.Unlock()
	d.mu.Lock()
	var qps []*qp
	for q := range d.later {
		qps = append(qps, q)
	}
	var cqs []*cq
	for c := range d.cqs {
		cqs = append(cqs, c)
	}
	d.mu.Unlock()
	more := false
	for _, q := range qps {
		more = q.advance() || more
	}
	for _, c := range cqs {
		more = c.tick() || more
	}
	for _, q := range waiting {
		if q.eventTick() {
			d.wait(q)
		}
	}
	if more {
		d.kick()
	}
}
