package engine

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/link"
)

// This is the path of a message, from the event that begins it to its trains. This file has the part of the thread,
// up to drain. run.go has the part of the queue pair.
//
//	doorbell, packets, timer, task
//	        |
//	      begin        a pass: the thread's working memory, and its run queue
//	        |
//	     wake         an idle queue pair enters the run queue; a running one gets the event for its thread
//	        |
//	      end, drain   the run queue, until it is empty or the budget is spent; then a goroutine continues
//	        |
//	      run          one queue pair: its events (receive, receiveTrain: resp.go, comp.go), then the possible work
//	        |          (advance: answers, then new requests), then the resulting trains (sendAll)
//	        |
//	      send ------> the network (endpoint.send), whose other end begins with Receive (recv.go)
//	        |
//	      hand         a device of the same Fabric: the train is an event of the peer, which wakes it
//
// At most one thread runs a queue pair at a time, and no thread waits for that: a thread with an event for a running
// queue pair leaves the event there and continues. So no lock is held while payload is copied, packets are sent and
// completions are reported. Memory that does not answer stops only the queue pairs of its own program (stall.go).

// pass is one run of the engine to completion, on the thread with the event. It holds the thread's working memory and
// the queue pairs to run.
type pass struct {
	dev   *Device
	todo  []*QP // the run queue; their activity says running
	done  int   // todo[:done] have been run
	spent int   // bytes sent and received since the thread began, and trainCost for each train
	since int   // spent when the run queue was last arranged
	runs  int   // since the pass was made

	spare []*QP // working memory of arrange

	workspace
	delivery
	copying

	method *QP      // the queue pair of a method that may not sleep, for which the pass works; nil: none
	last   *QP      // the queue pair that was run last
	lane   *lane    // the slow program that the pass works for; nil: none
	held   *ib.Hold // holds the callbacks of the devices; nil: the callbacks run on other threads
	own    ib.Hold  // storage for held
}

// workspace is the memory that a pass needs to send and to receive. The thread of the pass owns it, without a lock.
type workspace struct {
	build   builder
	gather  gather
	scatter scatter
	posted  queue.Send // the work request that is being posted
	grh     [grhLen]byte
	split   splitter
	batch   [link.MaxBatch]*link.Train // trains for one call
}

const (
	// passBudget is the maximum of pass.spent on a borrowed thread, at most about a millisecond. Then a goroutine
	// continues. A message between devices of a Fabric counts at both ends.
	passBudget = 4 << 20
	// trainCost is the fixed cost of a train, in bytes that take about the same time.
	trainCost = 4 << 10
	// failCost is the cost of a work request that fails: its completion and its report.
	failCost = 16 << 10
	// userQuantum is the increase of pass.spent after which the queue pairs of other users run first.
	userQuantum = 256 << 10
)

const (
	maxTakes = 8       // times that a pass receives from an endpoint before it leaves the rest to other threads
	maxTaken = 1 << 20 // value of pass.spent, in bytes, above which the pass leaves the rest
)

// delivery is the state of a pass that also receives its own packets: from endpoints, and as the receiver (copy.go).
// Its claims, like the run queue, belong to the thread, except during a copy. Then the watchdog may take them, under
// pass.reassigning.
type delivery struct {
	takes    bool    // the pass may receive its packets from endpoints of the Fabric
	claims   []claim // endpoints from which the pass receives
	receiver *QP     // queue pair that the pass runs as the receiver of its trains
	inline   bool    // the pass runs the receiver: a store must not wait for a program
}

// newPass returns a new pass for the device's pool.
func newPass(d *Device) *pass {
	p := &pass{dev: d}
	p.gather.p = p
	d.watchdog.add(p)
	return p
}

// begin starts a pass. With callbacks, the end of the pass runs the due completion handlers on this thread, which
// therefore must not be in a consumer's call.
func (d *Device) begin(callbacks bool) *pass {
	p := d.passes.Get().(*pass)
	if callbacks {
		p.held = &p.own
	}
	p.hold(d)
	return p
}

// hold defers the callbacks of the device to the thread of this pass.
func (p *pass) hold(d *Device) { p.held.Add(d.obj) }

// letGo runs the deferred callbacks. The caller of a doorbell runs the callbacks of the doorbell.
func (p *pass) letGo() {
	p.held = nil
	p.own.Run()
}

// wake adds the queue pair to the run queue, unless another thread runs it or it is in a run queue already.
func (p *pass) wake(qp *QP) {
	if qp.activity.wake() {
		p.todo = append(p.todo, qp)
	}
}

// end runs the queue pairs in the run queue, and releases the pass. A goroutine finishes a long pass, unless the
// thread has nothing else to do.
func (p *pass) end() {
	if finished := p.drain(passBudget); !finished {
		if p.held.Resume(p) {
			return
		}
		p.letGo()
		p.dev.workers.start(p.goOn)
		return
	}
	p.letGo()
	p.release()
}

// goOn finishes the pass on a goroutine.
func (p *pass) goOn() {
	defer p.caughtHolding()
	p.method = nil
	for finished := false; !finished; {
		p.held = &p.own
		finished = p.drain(passBudget)
		p.letGo()
	}
	p.release()
}

// Run implements ib.Work: it ends the pass of a doorbell.
func (p *pass) Run() { p.finish() }

// finish is end, and recovers a panic of the pass.
func (p *pass) finish() {
	defer p.caughtHolding()
	p.end()
}

// endMethod ends a pass for a method of a queue pair. The method may not sleep: a goroutine takes the work that leads
// to memory of another program, which may not answer.
func (p *pass) endMethod(own *QP) {
	p.method = own
	p.drain(passBudget)
	p.endElsewhere()
}

// endOwn ends a pass that has only tasks to run. A goroutine takes the resulting work for other queue pairs: the
// memory of their programs may not answer while a thread waits for the tasks. The goroutine also takes the rest when
// the budget is spent, because a consumer may post without end.
func (p *pass) endOwn() {
	defer p.caught()
	own := len(p.todo)
	goesOn := func() bool { return p.todo[p.done] == p.todo[p.done-1] && p.spent <= passBudget }
	for p.done < len(p.todo) && (p.done < own || goesOn()) {
		p.step()
	}
	p.endElsewhere()
}

// endElsewhere leaves the run queue to a goroutine. A pass with tasks for a queue pair of another program ends in
// this way without a run: that program may have posted without a doorbell, from memory that does not answer.
func (p *pass) endElsewhere() {
	if p.done == len(p.todo) {
		p.release()
		return
	}
	p.dev.workers.start(p.goOn)
}

func (p *pass) release() {
	clear(p.todo)
	p.todo, p.done, p.spent, p.since = p.todo[:0], 0, 0, 0
	p.at, p.last, p.lane, p.method, p.takes = nil, nil, nil, nil, false
	p.dev.passes.Put(p)
}

// drain runs queue pairs, and in between receives the packets that the pass has sent to endpoints of the Fabric. It
// reports true if none is left, and false if the budget is spent or the next queue pair must be left to a goroutine.
func (p *pass) drain(budget int) bool {
	p.takes = true
	p.spent, p.since = 0, 0
	for p.take(); p.done < len(p.todo) && p.mayRun(p.todo[p.done]); p.take() {
		if p.spent > budget {
			return false
		}
		p.step()
		if p.done > 64 {
			p.todo = append(p.todo[:0], p.todo[p.done:]...)
			p.done = 0
		}
		if p.spent-p.since > userQuantum {
			p.arrange()
		}
	}
	return p.done == len(p.todo)
}

// arrange moves one queue pair of each user to the front of the run queue, except of the user whose queue pair was run
// last. A queue pair therefore waits for one run of each other user, and not for their backlogs. The order among the
// queue pairs of one user does not change.
func (p *pass) arrange() {
	p.since = p.spent
	rest, front := p.todo[p.done:], 0
	later := p.spare[:0]
	for _, qp := range rest {
		first := p.last == nil || !qp.sharesUser(p.last)
		for i := 0; i < front && first; i++ {
			first = !qp.sharesUser(rest[i])
		}
		if first {
			rest[front] = qp
			front++
		} else {
			later = append(later, qp)
		}
	}
	copy(rest[front:], later)
	clear(later)
	p.spare = later[:0]
}

// sharesUser reports whether two queue pairs belong to one user.
func (qp *QP) sharesUser(other *QP) bool { return qp.lane == other.lane || qp.owner == other.owner }

// step runs the next queue pair.
func (p *pass) step() {
	qp := p.todo[p.done]
	p.done++
	if p.avoids(qp) {
		p.forgiveOne(qp)
		qp.lane.add(qp)
	} else {
		p.run(qp, nil, nil)
	}
}

// acquire makes the pass the owner of an idle queue pair, if the pass may run it, and reports whether the pass owns
// the queue pair. Otherwise the caller leaves an event.
func (p *pass) acquire(qp *QP) bool { return !p.avoids(qp) && p.mayRun(qp) && qp.activity.wake() }

// avoids reports whether the pass must not run the queue pair, because its program is slow.
func (p *pass) avoids(qp *QP) bool {
	l := qp.lane
	return l != p.lane && l.slow.Load() && !l.recovered()
}

// mayRun reports whether the pass may run the queue pair while it works for its method.
func (p *pass) mayRun(qp *QP) bool {
	switch {
	case p.method == nil:
		return true
	case qp.typ == ib.QPTypeXRCTgt:
		return qp.xrcd != nil && !qp.xrcd.programs.Load()
	}
	return qp.ctx == nil && (qp.user == nil || qp.user == p.method.user) || qp.ctx != nil && qp.ctx == p.method.ctx
}

// claim is an endpoint from which the pass receives.
type claim struct {
	to   *endpoint
	turn link.Turn
	sent int // trains sent to the endpoint since the last Take
}

// claim is called before a train is sent to the network by a path. It claims the endpoint at the other end, if the
// endpoint belongs to the Fabric and a program waits for the train.
//
// Packets to an address of this host are in its socket when the send call returns. The sending thread also receives
// them. This saves the wake-up of the receive thread and, on a busy machine, the wait for a processor. The thread
// owns the receiving side of the endpoint (link.Taker) from before the send until it has received. The receive thread
// receives the rest, and other packets, which Expect announces. A pass of a slow program claims nothing: it could
// block in Receive, with packets of other programs.
func (p *pass) claim(qp *QP, by *path) {
	to := by.lookUp().to
	if to == nil {
		return
	}
	w := to.wire.Load()
	if w == nil || w.taker == nil {
		return
	}
	if p.takes && p.lane == nil {
		for i := range p.claims {
			if c := &p.claims[i]; c.to == to {
				c.sent++
				return
			}
		}
		if qp.urgent() {
			if turn := w.taker.Claim(); turn != nil {
				p.claims = append(p.claims, claim{to, turn, 1})
			}
			return
		}
	}
	w.taker.Expect()
}

// take receives the packets that the pass has sent to endpoints of the Fabric. These may cause further packets.
func (p *pass) take() {
	for i := 0; i < len(p.claims); i++ {
		for n := 0; n < maxTakes && p.claims[i].sent > 0 && p.spent <= maxTaken; n++ {
			trains := p.claims[i].sent
			p.claims[i].sent = 0
			if !p.claims[i].turn.Take(p, trains) {
				break
			}
		}
	}
	p.yield()
}

// yield leaves the packets that have not been received yet to other threads.
func (p *pass) yield() {
	for _, c := range p.claims {
		c.turn.Yield()
	}
	clear(p.claims)
	p.claims = p.claims[:0]
}

// abandon leaves the claimed endpoints to other threads while the pass is blocked.
//
//verbena:held reassigning
func (p *pass) abandon() {
	for _, c := range p.claims {
		c.turn.Abandon()
	}
}

// task is a function that the thread that runs a queue pair calls.
//
//	waiting --run--> begun --> over
//	   |
//	   +--wait gives up--> withdrawn
type task struct {
	qp    *QP
	do    func(p *pass)
	state atomic.Uint32
	over  chan struct{}
}

const (
	taskWaiting uint32 = iota
	taskBegun
	taskWithdrawn
)

// taskPoll is the interval in which a thread that waits for a task checks whether it must give up.
const taskPoll = time.Millisecond

// post adds do to the tasks of the queue pair. The pass runs the task unless another thread does.
func (p *pass) post(qp *QP, do func(p *pass)) *task {
	t := &task{qp: qp, do: do, over: make(chan struct{})}
	qp.events.add(event{task: t})
	p.wake(qp)
	return t
}

func (t *task) run(p *pass) {
	if t.state.CompareAndSwap(taskWaiting, taskBegun) {
		t.do(p)
		close(t.over)
	}
}

// wait returns true when the task is over, and false if stop is true before the task has begun; then it never begins.
// It may sleep.
func (t *task) wait(stop func() bool) bool {
	for !t.await(stop) {
		if t.state.CompareAndSwap(taskWaiting, taskWithdrawn) {
			t.qp.events.remove(t)
			return false
		}
		if t.qp.dev.broken.Load() {
			return false
		}
	}
	return true
}

// await returns true when the task is over, and false if stop is true, or the device has failed, before that. It may
// sleep.
func (t *task) await(stop func() bool) bool {
	select {
	case <-t.over:
		return true
	default:
	}
	poll := time.NewTicker(taskPoll)
	defer poll.Stop()
	for {
		select {
		case <-t.over:
			return true
		case <-poll.C:
			if stop() || t.qp.dev.broken.Load() {
				return false
			}
		}
	}
}

// exclusively calls f while no thread runs the queue pair, on behalf of its own consumer, and waits without a limit.
// It returns false, perhaps without having called f, if the device has failed. It may sleep.
func (qp *QP) exclusively(f func(p *pass)) bool {
	if qp.dev.broken.Load() {
		return false
	}
	p := qp.dev.begin(false)
	t := p.post(qp, f)
	p.endOwn()
	return t.wait(qp.dev.broken.Load)
}

// look calls f while no thread runs the queue pair, on behalf of a caller other than its consumer. It returns EAGAIN
// if the memory of the program does not answer.
func (qp *QP) look(f func()) error {
	p := qp.dev.begin(false)
	t := p.post(qp, func(*pass) { f() })
	p.endElsewhere()
	if !t.wait(qp.unresponsive) {
		return fmt.Errorf("QP %d on %s: the memory of its program does not answer: %w", qp.num, qp.dev.name, syscall.EAGAIN)
	}
	return nil
}
