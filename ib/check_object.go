package ib

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What the exported functions call in checked mode. Where they return a frame, the caller leaves it.

// sleeps notes that the calling thread is in a function that may sleep; nil when the check is off.
func (d *Device) sleeps(what string) *frame {
	k := d.check.Load()
	if k == nil {
		return nil
	}
	d.checkGone(k, what)
	f := &frame{kind: inMethod, what: what, dev: d.root}
	k.enter(f)
	return f
}

// checkGone reports the use of a device after Unregister, or by a client after its Remove; then the call goes on.
func (d *Device) checkGone(k *checker, what string) error {
	at := d.unregistered.Load()
	if at == nil {
		d.checkRemoved(k, what)
		return nil
	}
	place := callers(2)
	k.report(Violation{
		Rule: RuleUseAfterUnregister, What: what + " called when Unregister had returned",
		Stacks: []Stack{{what, trace(place)}, {"unregistered at", trace(*at)}},
	}, d, place)
	return syscall.ENODEV
}

// checkRemoved reports the use of a device by a client that has been removed from it.
func (d *Device) checkRemoved(k *checker, what string) {
	at := d.removed.Load()
	if at == nil {
		return
	}
	place := callers(3)
	k.report(Violation{
		Rule: RuleUseAfterRemove, What: fmt.Sprintf("%s called when Remove of client %s had returned", what, d.client.Name),
		Stacks: []Stack{{what, trace(place)}, {"removed at", trace(*at)}},
	}, d, place)
}

// sleeps is the same for the method of an object.
func (o *object) sleeps(what string) *frame {
	if o.check == nil {
		return nil
	}
	f, _ := o.check.enter(&frame{kind: inMethod, what: what})
	return f
}

// destroys is the same for the function that destroys the object, with EDEADLK from a callback that it would wait
// for.
func (o *object) destroys(what string) (*frame, error) {
	if o.check == nil {
		return nil, nil
	}
	f := &frame{kind: inMethod, what: what, waits: true}
	if _, err := o.check.enter(f); err == syscall.EDEADLK {
		return f, err
	}
	o.check.ending.Store(&f.entry)
	return f, nil
}

// atomically notes that the thread is in a function that may not sleep. An error says that the object does not
// exist any more, so that the driver is not to be called.
func (o *object) atomically(what string) (*frame, error) {
	if o.check == nil {
		return nil, nil
	}
	return o.check.enter(&frame{kind: inAtomic, what: what})
}

// checkedQueue is a shared send queue in checked mode.
type checkedQueue struct {
	UserQP
	qp *QP
}

// Unwrap returns the driver's.
func (q *checkedQueue) Unwrap() DriverQP { return q.UserQP }

func (q *checkedQueue) Doorbell(h *Hold) {
	f, err := q.qp.check.enter(&frame{kind: inAtomic, what: "UserQP.Doorbell", holder: h})
	defer f.leave()
	if err == nil {
		q.UserQP.Doorbell(h)
	}
}

func (q *checkedQueue) Posted() (at uint32, some bool) {
	f, err := q.qp.atomically("UserQP.Posted")
	defer f.leave()
	if err != nil {
		return 0, false
	}
	return q.UserQP.Posted()
}

func (oc *objectCheck) enter(f *frame) (*frame, error) {
	f.obj, f.dev = oc, oc.dev
	err := oc.checkDestroyed(f.what)
	if err == nil && !oc.abandoned.Load() {
		err = oc.by.checkGone(oc.k, f.what)
	}
	if oc.k.enter(f) {
		err = syscall.EDEADLK
	}
	return f, err
}

// checkDestroyed reports the use of an object that has been destroyed.
func (oc *objectCheck) checkDestroyed(what string) error {
	return oc.checkUse(what, "%s on a %v that was destroyed")
}

// checkNamed reports each destroyed object that the work request names. The driver refuses the request.
func (wr *SendWR) checkNamed() {
	check := func(o *object) {
		if o.check != nil {
			o.check.checkUse("QP.PostSend", "%s of a work request that names a %v that was destroyed")
		}
	}
	if wr.AH != nil {
		check(&wr.AH.object)
	}
	if b := wr.Bind; b != nil && b.MW != nil {
		check(&b.MW.object)
	}
	if b := wr.Bind; b != nil && b.MR != nil {
		check(&b.MR.object)
	}
	if wr.Reg != nil && wr.Reg.MR != nil {
		check(&wr.Reg.MR.object)
	}
}

// checkUse is checkDestroyed with the format of the report, which gets what and the kind of the object.
func (oc *objectCheck) checkUse(what, format string) error {
	at := oc.destroyed.Load()
	if at == nil {
		return nil
	}
	place := callers(4)
	oc.k.report(Violation{
		Rule: RuleUseAfterDestroy, What: fmt.Sprintf(format, what, oc.kind),
		Stacks: []Stack{{what, trace(place)}, {"destroyed at", trace(*at)}, {"made at", trace(oc.made)}},
	}, oc.dev, place)
	return syscall.EINVAL
}

// reports checks that the driver may report on the object.
func (oc *objectCheck) reports(what string) { oc.checkDestroyed(what) }

func (oc *objectCheck) born() {
	oc.k.mu.Lock()
	defer oc.k.mu.Unlock()
	oc.k.live[oc] = struct{}{}
}

func (oc *objectCheck) died() {
	at := callers(2)
	if called := oc.ending.Load(); called != nil {
		at = *called // perhaps by another goroutine
	}
	oc.destroyed.Store(&at)
	oc.work.gone(at)
	for _, t := range []*time.Timer{oc.armed.Load(), oc.rearm.Load()} {
		if t != nil {
			t.Stop()
		}
	}
	id := goid()
	oc.k.mu.Lock()
	delete(oc.k.live, oc)
	var inside *frame
	for _, th := range oc.k.threads {
		// One that waits for the end of the object, having called for it, is not inside it.
		if f := th.find(func(f *frame) bool { return f.obj == oc && !f.waits }); f != nil && th.id != id {
			inside = f
		}
	}
	oc.k.mu.Unlock()
	if inside == nil {
		return
	}
	oc.k.report(Violation{
		Rule: RuleInUse, What: fmt.Sprintf("a thread was inside %s when the %v was destroyed", inside.what, oc.kind),
		Stacks: []Stack{{inside.what + " called at", trace(inside.entry)}, {"destroyed at", trace(at)}, {"made at", trace(oc.made)}},
	}, oc.dev, at)
}

func (oc *objectCheck) abandon() {
	oc.abandoned.Store(true)
	oc.k.mu.Lock()
	defer oc.k.mu.Unlock()
	delete(oc.k.live, oc)
}

// left returns where the functions that the client should have ended began to listen, once.
func (h *eventHandlers) left(cl *Client) (made [][]uintptr) {
	if cl == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.list {
		if x.owner == cl {
			x.owner = nil
			made = append(made, x.made)
		}
	}
	return made
}

// removed notes that a client has been removed from its device: it has left nothing behind, and does not use it any more.
func (k *checker) removed(a *attachment, when string) {
	at := callers(1)
	a.dev.removed.Store(&at)
	k.leftBehind(a.dev.root, a.client, when)
}

// leftBehind reports, once, the objects and event functions on d that cl (nil: anybody) should have destroyed before now.
func (k *checker) leftBehind(d *Device, cl *Client, when string) {
	k.mu.Lock()
	var left []*objectCheck
	for oc := range k.live {
		if oc.dev == d && (cl == nil || oc.owner == cl) {
			left = append(left, oc)
			delete(k.live, oc)
		}
	}
	k.mu.Unlock()
	slices.SortFunc(left, func(a, b *objectCheck) int { return int(a.kind) - int(b.kind) })
	var kinds []string
	var place []uintptr
	stacks := []Stack{{when, trace(callers(1))}}
	note := func(what string, made []uintptr) {
		kinds = append(kinds, what)
		if len(stacks) < 10 {
			stacks = append(stacks, Stack{what + " made at", trace(made)})
		}
		if place == nil {
			place = made
		}
	}
	for _, oc := range left {
		note(oc.kind.String(), oc.made)
	}
	for _, made := range d.events.left(cl) {
		note("event function", made)
	}
	if len(kinds) == 0 {
		return
	}
	k.report(Violation{
		Rule: RuleLeftBehind, What: fmt.Sprintf("objects left when %s returned: %s", when, strings.Join(kinds, ", ")),
		Stacks: stacks,
	}, d, place)
}

// stillInside reports the calls on d that have not returned when Unregister, whose frame is f, does.
func (k *checker) stillInside(d *Device, f *frame) {
	if k == nil {
		return
	}
	type call struct {
		inside *frame
		id     int64
	}
	var calls []call
	k.mu.Lock()
	for id, th := range k.threads {
		x := th.find(func(x *frame) bool { return (x.kind == inMethod || x.kind == inAtomic) && x.dev == d })
		known := x != nil && x.obj != nil && (x.obj.abandoned.Load() || x.obj.destroyed.Load() != nil)
		if x != nil && th != f.th && !known {
			calls = append(calls, call{x, id})
		}
	}
	k.mu.Unlock()
	if len(calls) == 0 {
		return
	}
	all := goroutines()
	for _, c := range calls {
		if all[c.id].trace == "" {
			continue // it has just returned
		}
		k.report(Violation{
			Rule: RuleInsideAtUnregister, What: fmt.Sprintf("%s has not returned when Unregister returns", c.inside.what),
			Stacks: []Stack{{c.inside.what + ", still inside", all[c.id].trace}, {f.what, trace(f.entry)}},
		}, d, c.inside.entry)
	}
}

// call runs a consumer's function as a callback.
func (oc *objectCheck) call(what string, raised []uintptr, f func()) {
	(&frame{k: oc.k, kind: inCallback, what: what, obj: oc, dev: oc.dev, raised: raised}).callback(f)
}

// callEvent reports an event of the device to a consumer.
func (k *checker) callEvent(e Event, x *eventHandler) {
	fr := &frame{k: k, kind: inCallback, what: fmt.Sprintf("the function for the event %q", e.Type), dev: e.Device.root, listener: x}
	fr.callback(func() { x.f(e) })
}

// checkedHandler runs the completion handler of cq.
func (cq *CQ) checkedHandler() {
	oc := cq.check
	var raised []uintptr
	if at := oc.raised.Load(); at != nil {
		raised = *at
	}
	fr := &frame{k: oc.k, kind: inCallback, what: "the completion handler", obj: oc, dev: oc.dev, raised: raised}
	fr.callback(func() {
		if other := oc.handler.Swap(fr); other != nil {
			oc.k.report(Violation{
				Rule: RuleOneHandler, What: "a second completion handler of a CQ started while the first was running",
				Stacks: []Stack{{"the second", trace(fr.entry)}, {"the first", trace(other.entry)}, {"raised at", trace(raised)}},
			}, oc.dev, fr.entry)
		}
		defer oc.handler.CompareAndSwap(fr, nil)
		armings := oc.armings.Load()
		cq.handler(cq)
		if fr.polled != nil && oc.armings.Load() == armings {
			cq.expectRearm(fr.polled, fr.batch)
		}
		if fr.blind != nil && fr.batch {
			cq.expectRest(fr.blind)
		}
	})
}

// completed checks that the driver's report is called for, and reports whether it is of checked mode's own making.
func (oc *objectCheck) completed() bool {
	oc.reports("CQHandle.Completed")
	place := callers(2)
	oc.raised.Store(&place)
	oc.answers.Add(1)
	if oc.requests.Add(-1) < 0 {
		oc.requests.Add(1)
		oc.k.report(Violation{
			Rule: RuleNotifyOnce, What: "CQHandle.Completed called more often than ReqNotify",
			Stacks: []Stack{{"CQHandle.Completed", trace(place)}, {"the CQ made at", trace(oc.made)}},
		}, oc.dev, place)
	}
	return oc.ownProbe()
}

// The methods of the data path cost nothing when the check is off: an object calls its driver, or one of these.
type (
	poller interface {
		Poll(wc []WC) (int, error)
		ReqNotify(flags NotifyFlags) (missed bool, err error)
	}
	recvPoster interface {
		PostRecv(wrs []RecvWR) (int, error)
	}
	poster interface {
		recvPoster
		PostSend(wrs []SendWR) (int, error)
	}

	checkedCQ  struct{ cq *CQ }
	checkedQP  struct{ qp *QP }
	checkedSRQ struct{ srq *SRQ }
)

func (c checkedQP) PostSend(wrs []SendWR) (int, error) {
	for i := range wrs {
		wrs[i].checkNamed()
	}
	return checkedPost(&c.qp.object, "QP.PostSend", wrs, c.qp.drv.PostSend, c.qp.check.work.sends)
}

func (c checkedQP) PostRecv(wrs []RecvWR) (int, error) {
	return checkedPost(&c.qp.object, "QP.PostRecv", wrs, c.qp.drv.PostRecv, c.qp.check.work.recvs)
}

func (c checkedSRQ) PostRecv(wrs []RecvWR) (int, error) {
	return checkedPost(&c.srq.object, "SRQ.PostRecv", wrs, c.srq.drv.PostRecv, c.srq.check.work.recvs)
}

func (c checkedCQ) Poll(wc []WC) (int, error) {
	cq := c.cq
	f, err := cq.atomically("CQ.Poll")
	defer f.leave()
	if err != nil {
		return 0, err
	}
	cq.check.polls.Add(1)
	before := cq.check.destroyedQPs()
	cq.check.polling.Add(1)
	defer cq.check.polling.Add(-1)
	n, err := cq.drv.Poll(wc)
	switch {
	case n < 0 || n > len(wc):
		f.result(fmt.Sprintf("%d completions returned into room for %d", n, len(wc)))
	case err != nil:
		cq.check.broken.Store(true)
	case len(wc) > 0:
		cq.polled(f, wc[:n], before)
		f.notePolled(n == len(wc))
	}
	return n, err
}

func (c checkedCQ) ReqNotify(flags NotifyFlags) (bool, error) {
	cq := c.cq
	f, err := cq.atomically("CQ.ReqNotify")
	defer f.leave()
	if err != nil {
		return false, err
	}
	cq.check.requests.Add(1)
	cq.check.armings.Add(1)
	missed, err := cq.drv.ReqNotify(flags)
	if err != nil {
		cq.check.requests.Add(-1)
	}
	if missed && flags&NotifyReportMissed == 0 {
		f.result("missed completions reported without NotifyReportMissed")
	}
	if err == nil {
		f.noteArmed(flags)
		cq.expectPoll(flags, missed, f.entry)
	}
	return missed, err
}

// stillMissed asks the driver whether the queue has completions in it, unless the queue is being destroyed.
func (cq *CQ) stillMissed(flags NotifyFlags) bool {
	oc := cq.check
	oc.probing.Lock()
	defer oc.probing.Unlock()
	if cq.live() != nil {
		return false
	}
	oc.requests.Add(1) // the queue may have been disarmed meanwhile
	//verbena:allow serial no consumer's call waits for probing: it keeps the checker's calls from the queue's end
	missed, err := cq.drv.ReqNotify(flags | NotifyReportMissed)
	return missed && err == nil
}

// expectPoll reports, some time after the queue was armed, a completion that was in it then and may lie there for ever: there
// has been no poll since, and no notification. Where the consumer did not ask for missed completions, the driver is asked
// once more.
func (cq *CQ) expectPoll(flags NotifyFlags, missed bool, at []uintptr) {
	oc := cq.check
	if oc.user || flags&NotifyReportMissed != 0 && !missed {
		return
	}
	polls, answers := oc.polls.Load(), oc.answers.Load()
	same := func() bool {
		return oc.polls.Load() == polls && oc.answers.Load() == answers && oc.destroyed.Load() == nil &&
			oc.dev.State() == DeviceActive
	}
	after := func(d time.Duration, f func()) {
		if old := oc.armed.Swap(time.AfterFunc(d, f)); old != nil {
			old.Stop()
		}
	}
	report := func() {
		if !same() {
			return
		}
		oc.k.report(Violation{
			Rule: RuleArmWithoutPoll,
			What: fmt.Sprintf("a CQ with completions in it was armed, and not polled for %v: "+
				"the notification that the consumer waits for may never come", oc.k.cfg.Patience),
			Stacks: []Stack{{"CQ.ReqNotify", trace(at)}, {"the CQ made at", trace(oc.made)}},
		}, oc.dev, at)
	}
	after(oc.k.cfg.Patience, func() {
		switch {
		case !same():
		case missed:
			report()
		case cq.stillMissed(flags):
			after(oc.k.cfg.Patience/4, report) // unless the completion has just come, and its notification follows
		}
	})
}

// checkedPost is PostSend or PostRecv of a queue.
func checkedPost[WR any](o *object, what string, wrs []WR, post func([]WR) (int, error),
	note func(*frame, []WR) (taken func(int))) (int, error) {

	f, err := o.atomically(what)
	defer f.leave()
	if err != nil {
		return 0, err
	}
	taken := note(f, wrs)
	n, err := post(wrs)
	taken(n)
	if n < 0 || n > len(wrs) || n < len(wrs) && err == nil || n == len(wrs) && n > 0 && err != nil {
		f.result(fmt.Sprintf("%d of %d work requests taken, error %v", n, len(wrs), err))
	}
	return n, err
}

// result reports what a driver's method returned.
func (f *frame) result(what string) {
	f.k.report(Violation{
		Rule: RuleResult, What: f.what + ": " + what, Stacks: []Stack{{f.what, trace(f.entry)}},
	}, f.dev, f.entry)
}

// register notes that the thread is in Register, Unregister or their like. EDEADLK says that it would wait for
// itself.
func (k *checker) register(what string, d *Device, cl *Client) (*frame, error) {
	if k == nil {
		return nil, nil
	}
	f := &frame{kind: inRegister, what: what, dev: d, client: cl, waits: true} // d is everybody's
	if k.enter(f) {
		return f, syscall.EDEADLK
	}
	return f, nil
}

// client notes that the thread is in a client's Add or Remove.
func (d *Device) clientFrame(what string, cl *Client) *frame {
	k := d.check.Load()
	if k == nil {
		return nil
	}
	f := &frame{kind: inClient, what: fmt.Sprintf("%s of client %s", what, cl.Name), dev: d, client: cl}
	k.enter(f)
	return f
}

// Dealloc says that the driver is about to free what the device needs: its memory, threads, sockets. The driver
// calls it when Unregister has returned, or instead of Register. EBUSY: the device is still registered; nothing may
// be freed. It may not sleep. (ib_dealloc_device)
func (h *DeviceHandle) Dealloc() error {
	d := h.dev
	if s := d.State(); s == DeviceNew || s == DeviceGone {
		return nil
	}
	if k := d.check.Load(); k != nil {
		place := callers(1)
		k.report(Violation{
			Rule: RuleFreeBeforeUnregister, What: "DeviceHandle.Dealloc called when Unregister had not returned",
			Stacks: []Stack{{"DeviceHandle.Dealloc", trace(place)}, {"registered at", trace(d.registered)}},
		}, d, place)
	}
	return fmt.Errorf("dealloc device %s: device is %v: %w", d.name, d.State(), syscall.EBUSY)
}
