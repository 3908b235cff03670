package relay

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
)

// A program with checks (check.User) has a device with the choices of checkedChoices. The relay reports each step of a
// work request to package ib/check:
//
//	fetched from the program's queue --> Sending --> posted --> Arrived --> Compare --> Delivered --> Consumed
//
// Sending, Copy and Compare read the memory of the program, which may take long. A thread that reads holds only
// sendChecks.mu or heldCompletions.reading, which only the program's own threads wait for.

// checkedChoices is the set of the choices of the device of a program with checks. The capacities are exactly as
// requested, except that of inline data. The keys of a region differ.
var checkedChoices = weak.Of(weak.ExactRoom, weak.SplitKeys, weak.NewKeys)

// The time between the arrival of a completion with memory to compare and its delivery. A program that uses the memory
// too early does so in this time.
const (
	firstHoldTime = time.Millisecond // for the first holds of a completion queue
	firstHolds    = 16
	holdTime      = 100 * time.Microsecond
)

// holdStep is the period in which held completions are examined. A first hold takes at least firstHoldSteps periods,
// which are longer on a busy machine: the thread of the program may have to wait for a processor too.
const (
	holdStep       = 20 * time.Microsecond
	firstHoldSteps = 8
)

// replyHolds contains the factors of the first holds of sends if the reply of the peer should come before their
// completion. They differ because the peer may poll the completion of its reply too.
var replyHolds = [4]int{1, 2, 8, 16}

// maxHeld limits the held completions of a completion queue, if the memory of the program does not answer.
const maxHeld = 1024

// maxLookedAt is the number of completion queues of a program that a doorbell examines.
const maxLookedAt = 16

// configure returns the settings of the weak device and of the checks of a context; nil for an ordinary device.
func configure(c ib.UserContext) (*weak.Config, *check.Program) {
	var config *weak.Config
	if w, ok := c.(weak.User); ok {
		if config = w.WeakConfig(); config != nil {
			own := *config
			config = &own
			config.Choices = config.Enabled()
		}
	}
	user, ok := c.(check.User)
	if !ok {
		return config, nil
	}
	checks := user.CheckConfig()
	if checks == nil {
		return config, nil
	}
	if config == nil {
		config = &weak.Config{}
	}
	config.Choices |= checkedChoices
	return config, check.NewProgram(*checks, user)
}

// sendChecks serialises the posts of a queue pair with checks.
type sendChecks struct {
	// mu is locked before qp.mu. Other threads than the program's only try to lock it.
	//verbena:program the doorbells and posts of the queue pair
	mu    sync.Mutex
	again atomic.Bool // a thread has not waited for mu

	posted atomic.Uint64 // number of posted requests
}

// checkRefused reports a doorbell without a new request on a full queue to the checks. before is the number of requests
// posted before the doorbell.
func (q *qp) checkRefused(before uint64) {
	q.mu.Lock()
	full := len(q.out.list) >= int(q.cap.MaxSendWR)
	q.mu.Unlock()
	if full && q.sends.posted.Load() == before {
		q.checked.Refused()
	}
}

// postCheckedSends is postSends for a program with checks. Without wait it leaves the requests to a thread that is
// inside.
func (q *qp) postCheckedSends(wait bool) (full bool) {
	s := &q.sends
	if wait {
		s.mu.Lock()
	} else if !s.mu.TryLock() {
		s.again.Store(true)
		if !s.mu.TryLock() {
			return false
		}
	}
	for {
		s.again.Store(false)
		full = q.postEachChecked()
		s.mu.Unlock()
		if !s.again.Load() || !s.mu.TryLock() {
			return full
		}
	}
}

// postEachChecked posts the requests one by one.
//
//verbena:held sends.mu
func (q *qp) postEachChecked() (full bool) {
	for range q.sq.Capacity() {
		more, err := q.postOneChecked()
		if err != nil {
			return errors.Is(err, syscall.ENOMEM)
		}
		if !more {
			return false
		}
	}
	return false
}

// postOneChecked posts the next request. It returns false if there is none.
//
//verbena:held sends.mu
func (q *qp) postOneChecked() (more bool, err error) {
	f, ok := q.fetchChecked()
	if !ok {
		return false, nil
	}
	defer f.free()
	posted := func(int) {}
	if f.status == ib.WCSuccess {
		q.checked.Fetched()
		q.postReceives() // possibly posted before the send
		q.lookAtCQs()    // after the program has posted the request
		posted = q.checked.Sending(&f.wr, q.w.ID, q.w.AH)
	}
	more, err = q.postFetched(&f)
	if more {
		posted(1)
	} else {
		posted(0)
	}
	return more, err
}

// fetchedSend is a decoded request.
type fetchedSend struct {
	wr     ib.SendWR
	status ib.WCStatus
	free   func()
	resets uint64
}

// fetchChecked decodes the next request into q.w and f.
//
//verbena:held sends.mu
func (q *qp) fetchChecked() (f fetchedSend, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isUsable() || q.State() < ib.QPRTS {
		return f, false
	}
	found, ok := q.sq.Fetch(0, &q.w)
	if !ok {
		q.loseQueues()
		return f, false
	}
	if !found {
		return f, false
	}
	f.resets = q.resets
	f.free, f.status = q.translate(&q.w, &f.wr)
	f.wr.ID = q.sendID(q.out.next())
	return f, true
}

// postFetched posts a decoded request, unless the queue was reset.
//
//verbena:held sends.mu
func (q *qp) postFetched(f *fetchedSend) (posted bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isUsable() || q.State() < ib.QPRTS || q.resets != f.resets {
		return false, nil
	}
	if err := q.postTranslated(&q.w, &f.wr, f.status); err != nil {
		return false, err
	}
	q.sq.Take()
	q.sends.posted.Add(1)
	return true, nil
}

// lookAtCQs reports the polls of the program to the checks.
func (q *qp) lookAtCQs() {
	if q.sendCQ != nil {
		q.sendCQ.look()
	}
	if q.recvCQ != nil && q.recvCQ != q.sendCQ {
		q.recvCQ.look()
	}
}

// look reports the polls of the program to the checks.
func (c *cq) look() {
	if c.checked == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.lost || c.p.detached.Load() {
		return
	}
	if _, waiting, ok := c.oldest(); ok {
		c.checked.Consumed(int(waiting))
	}
}

// look reports the polls of the program, and the receives that it has posted without a call, to the checks.
func (p *program) look() {
	if p.checks == nil {
		return
	}
	for _, q := range p.listQPs() {
		q.refill()
	}
	for _, s := range p.listSRQs() {
		s.post()
	}
	for _, c := range p.listCQs() {
		c.look()
	}
}

// postEarlierReceives posts the receives of a queue pair that the program has posted before it can poll the completion
// of a send.
func (p *program) postEarlierReceives(wc *ib.WC) {
	p.mu.Lock()
	q, ok := p.owners[uint32(wc.ID>>32)].(*qp)
	p.mu.Unlock()
	if ok && uint32(wc.ID)&recvNumber == 0 && q.checked != nil {
		q.postReceives()
	}
}

// copyArrived copies the memory of completions that have just arrived. The caller is a thread of the program, in a
// doorbell that has begun at a time.
func (p *program) copyArrived(began time.Time) {
	list := p.listCQs()
	for _, c := range list[:min(len(list), maxLookedAt)] {
		c.drain()
		c.copyArrived()
		c.restartHolds(began)
	}
}

// restartHolds begins the hold times of the completions that have arrived since the begin of a doorbell. The program's
// thread continues after the doorbell.
func (c *cq) restartHolds(began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.held.list {
		if x.arrival != nil && !x.due.Add(-x.time).Before(began) {
			x.due, x.steps = time.Now().Add(x.time), x.minSteps
		}
	}
}

// heldCompletions are completions that the program has not received.
type heldCompletions struct {
	// reading is held while the memory of the program is read.
	//verbena:program the program's doorbells, and the goroutine that delivers its completions
	reading sync.Mutex
	list    []*heldCompletion
	count   uint64 // number of completions with memory to compare
	running bool   // examineHeld runs
}

// heldCompletion is a completion with its internal ID.
type heldCompletion struct {
	wc      ib.WC
	arrival *check.Arrival // nil: nothing to compare
	due     time.Time
	time    time.Duration // from the arrival to due
	// steps is the number of periods until the delivery, and minSteps that from the arrival on.
	steps, minSteps int
}

// hold adds a completion behind the held ones.
//
//verbena:held mu
func (c *cq) hold(wc *ib.WC) {
	h := &heldCompletion{wc: *wc, arrival: c.checked.Arrived(wc)}
	if h.arrival != nil {
		d := holdTime
		if c.held.count++; c.held.count <= firstHolds {
			if d, h.minSteps = c.p.firstHold, firstHoldSteps; h.arrival.AwaitsReply() {
				n := replyHolds[(wc.QPNum*0x9e3779b1+uint32(c.held.count)*0x85ebca6b)>>30]
				d, h.minSteps = d*time.Duration(n), h.minSteps*n
			}
		}
		h.due, h.time, h.steps = time.Now().Add(d), d, h.minSteps
	}
	c.held.list = append(c.held.list, h)
	if len(c.held.list) > maxHeld {
		c.releaseHeld()
	}
}

// deliverHeld delivers the completions without memory to compare up to the first one with such memory.
//
//verbena:held mu
func (c *cq) deliverHeld() {
	h := &c.held
	for len(h.list) > 0 && h.list[0].arrival == nil {
		x := h.list[0]
		h.list = h.list[1:]
		c.deliver(&x.wc)
	}
	if len(h.list) == 0 {
		h.list = nil
	} else if !h.running {
		h.running = true
		go c.examineHeld()
	}
}

// endHold is releaseHeld without the lock.
func (c *cq) endHold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseHeld()
}

// releaseHeld delivers all held completions without comparisons.
//
//verbena:held mu
func (c *cq) releaseHeld() {
	if c.held.reading.TryLock() { // otherwise a thread is using the copies
		for _, x := range c.held.list {
			if x.arrival != nil {
				x.arrival.Drop()
			}
		}
		c.held.reading.Unlock()
	}
	for _, x := range c.held.list {
		x.arrival = nil
	}
	c.deliverHeld()
}

// copyArrived copies the memory of held completions.
func (c *cq) copyArrived() {
	c.held.reading.Lock()
	defer c.held.reading.Unlock()
	for _, a := range c.listArrivals() {
		a.Copy()
	}
}

func (c *cq) listArrivals() (list []*check.Arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.held.list {
		if x.arrival != nil {
			list = append(list, x.arrival)
		}
	}
	return list
}

// examineHeld compares and delivers held completions until there are none. The timers of the runtime can be late by a
// millisecond, so it sleeps in the kernel.
func (c *cq) examineHeld() {
	for {
		c.copyArrived()
		x, due := c.firstHeld()
		if x == nil {
			return
		}
		if !due {
			wait := syscall.NsecToTimespec(int64(holdStep))
			_ = syscall.Nanosleep(&wait, nil)
			continue
		}
		c.compareAndDeliver(x)
	}
}

// firstHeld returns the first held completion, and reports whether its delivery is due. Without one, examineHeld must
// end.
func (c *cq) firstHeld() (x *heldCompletion, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held.list) == 0 || c.dead {
		c.held.running = false
		return nil, false
	}
	x = c.held.list[0]
	x.steps--
	return x, x.arrival == nil || x.steps < 0 && !time.Now().Before(x.due)
}

func (c *cq) compareAndDeliver(x *heldCompletion) {
	c.mu.Lock()
	a := x.arrival
	c.mu.Unlock()
	if a != nil {
		c.held.reading.Lock()
		a.Compare()
		c.held.reading.Unlock()
	}
	c.mu.Lock()
	x.arrival = nil
	c.deliverHeld()
	c.mu.Unlock()
	for _, q := range c.retry.takeAll() {
		q.advance(nil)
	}
}
