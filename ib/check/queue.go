package check

import (
	"fmt"
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// The types in this file wrap the driver's queues.
type (
	queueCQ struct {
		ib.DriverCQ
		o *checkedObject
	}
	queueQP struct {
		ib.DriverQP
		o *checkedObject
	}
	queueUserQP struct {
		queueQP
		user ib.UserQP
	}
	queueSRQ struct {
		ib.DriverSRQ
		o *checkedObject
	}
)

// WrapQueue wraps a queue and begins to track its work requests.
func (k *checker) WrapQueue(s observe.Subject, drv any, m observe.QueueInfo) any {
	o := s.(*checkedObject)
	o.user, o.mayOverrun = m.User, m.Overruns
	switch d := drv.(type) {
	case ib.DriverCQ:
		o.cq = d
		return &queueCQ{d, o}
	case ib.DriverQP:
		o.trackQP(o.self.(*ib.QP))
		q := queueQP{d, o}
		if u, ok := ib.As[ib.UserQP](d); ok {
			return &queueUserQP{q, u}
		}
		return &q
	case ib.DriverSRQ:
		o.trackSRQ(o.self.(*ib.SRQ))
		return &queueSRQ{d, o}
	}
	return drv
}

// Unwrap returns the driver's queue pair.
func (q *queueQP) Unwrap() ib.DriverQP { return q.DriverQP }

func (q *queueQP) PostSend(wrs []ib.SendWR) (int, error) {
	for i := range wrs {
		checkReferencedObjects(&wrs[i])
	}
	return postChecked(q.o, "QP.PostSend", wrs, q.DriverQP.PostSend, q.o.work.recordSends)
}

// checkReferencedObjects reports each destroyed object that the work request names. The driver then rejects the
// request.
func checkReferencedObjects(wr *ib.SendWR) {
	check := func(x any) {
		if o := checkedObjectOf(x); o != nil {
			_ = o.checkNotDestroyedAs("QP.PostSend", "%s of a work request that names a %v that was destroyed")
		}
	}
	if wr.AH != nil {
		check(wr.AH)
	}
	if b := wr.Bind; b != nil && b.MW != nil {
		check(b.MW)
	}
	if b := wr.Bind; b != nil && b.MR != nil {
		check(b.MR)
	}
	if wr.Reg != nil && wr.Reg.MR != nil {
		check(wr.Reg.MR)
	}
}

func (q *queueQP) PostRecv(wrs []ib.RecvWR) (int, error) {
	return postChecked(q.o, "QP.PostRecv", wrs, q.DriverQP.PostRecv, q.o.work.recordRecvs)
}

func (q *queueQP) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	q.o.work.recordModify(attr, mask)
	err := q.DriverQP.Modify(attr, mask, u)
	if err == nil && mask&ib.QPAttrState != 0 {
		q.o.work.recordQPState(attr.State)
	}
	return err
}

func (q *queueQP) Destroy() error {
	q.o.stopping.Store(true)
	err := q.DriverQP.Destroy()
	if err != nil {
		q.o.stopping.Store(false)
	}
	return err
}

func (q *queueUserQP) Doorbell(h *ib.Hold) {
	f := &frame{kind: inAtomic, what: "UserQP.Doorbell", holder: h}
	err := q.o.enterObjectCall(f)
	defer f.popFrame()
	if err == nil {
		q.user.Doorbell(h)
	}
}

func (q *queueUserQP) Posted() (at uint32, some bool) {
	f, err := q.o.enterAtomicCall("UserQP.Posted")
	defer f.popFrame()
	if err != nil {
		return 0, false
	}
	return q.user.Posted()
}

func (q *queueUserQP) TakeBack() { q.user.TakeBack() }

func (q *queueSRQ) PostRecv(wrs []ib.RecvWR) (int, error) {
	return postChecked(q.o, "SRQ.PostRecv", wrs, q.DriverSRQ.PostRecv, q.o.work.recordRecvs)
}

func (q *queueCQ) Poll(wc []ib.WC) (int, error) {
	o := q.o
	f, err := o.enterAtomicCall("CQ.Poll")
	defer f.popFrame()
	if err != nil {
		return 0, err
	}
	o.polls.Add(1)
	before := o.destroyedQPs()
	o.pollers.Add(1)
	defer o.pollers.Add(-1)
	n, err := q.DriverCQ.Poll(wc)
	switch {
	case n < 0 || n > len(wc):
		f.reportInconsistentResult(fmt.Sprintf("%d completions returned in an array of %d", n, len(wc)))
	case err != nil:
		o.broken.Store(true)
	case len(wc) > 0:
		overwriteCompletions(wc[:n])
		o.recordPolledCompletions(f, wc[:n], before)
		f.recordPollResult(n == len(wc))
	}
	return n, err
}

func (q *queueCQ) ReqNotify(flags ib.NotifyFlags) (bool, error) {
	o := q.o
	f, err := o.enterAtomicCall("CQ.ReqNotify")
	defer f.popFrame()
	if err != nil {
		return false, err
	}
	o.requests.Add(1)
	o.armings.Add(1)
	missed, err := q.DriverCQ.ReqNotify(flags)
	if err != nil {
		o.requests.Add(-1)
	}
	if missed && flags&ib.NotifyReportMissed == 0 {
		f.reportInconsistentResult("missed completions reported without NotifyReportMissed")
	}
	if err == nil {
		f.recordReqNotify(flags)
		o.expectPoll(flags, missed, f.entry)
	}
	return missed, err
}

func (q *queueCQ) Destroy() error {
	q.o.probeMu.Lock()
	defer q.o.probeMu.Unlock()
	// Only calls of the checker wait for probing; calls of consumers do not.
	err := q.DriverCQ.Destroy()
	q.o.gone = err == nil
	return err
}

// enterAtomicCall enters a call on the object that may not sleep.
func (o *checkedObject) enterAtomicCall(what string) (*frame, error) {
	f := &frame{kind: inAtomic, what: what}
	return f, o.enterObjectCall(f)
}

// hasCompletions asks the driver whether the queue holds completions. hasCompletions does not ask if the queue has
// been destroyed.
func (o *checkedObject) hasCompletions(flags ib.NotifyFlags) bool {
	o.probeMu.Lock()
	defer o.probeMu.Unlock()
	if o.gone {
		return false
	}
	o.requests.Add(1) // the queue may have been disarmed in between
	// A call of a consumer never waits for probing. probing only prevents the destruction of the queue during a call of
	// the checker.
	missed, err := o.cq.ReqNotify(flags | ib.NotifyReportMissed)
	return missed && err == nil
}

// expectPoll waits for some time after the queue was armed. expectPoll reports a completion that was in the queue at
// that time if neither a poll nor a notification has followed. If the consumer did not ask for missed completions,
// expectPoll asks the driver again.
func (o *checkedObject) expectPoll(flags ib.NotifyFlags, missed bool, at []uintptr) {
	if o.user || flags&ib.NotifyReportMissed != 0 && !missed {
		return
	}
	polls, answers := o.polls.Load(), o.answers.Load()
	same := func() bool {
		return o.polls.Load() == polls && o.answers.Load() == answers && o.destroyed.Load() == nil &&
			o.dev.State() == ib.DeviceActive
	}
	after := func(d time.Duration, f func()) {
		if old := o.armed.Swap(time.AfterFunc(d, f)); old != nil {
			old.Stop()
		}
	}
	report := func() {
		if !same() {
			return
		}
		o.k.report(Violation{
			Rule: RuleArmWithoutPoll,
			What: fmt.Sprintf("a CQ with completions in it was armed, and not polled for %v: "+
				"the notification that the consumer waits for may never come", o.k.cfg.Timeout),
			Stacks: []Stack{{"CQ.ReqNotify", formatStack(at)}, {"the CQ made at", formatStack(o.made)}},
		}, o.dev, at)
	}
	after(o.k.cfg.Timeout, func() {
		switch {
		case !same():
		case missed:
			report()
		case o.hasCompletions(flags):
			after(o.k.cfg.Timeout/4, report) // a completion may have just arrived and be reported soon
		}
	})
}

// postChecked calls PostSend or PostRecv of a queue.
func postChecked[WR any](o *checkedObject, what string, wrs []WR, post func([]WR) (int, error),
	note func(*frame, []WR) (taken func(int))) (int, error) {

	f, err := o.enterAtomicCall(what)
	defer f.popFrame()
	if err != nil {
		return 0, err
	}
	taken := note(f, wrs)
	n, err := post(wrs)
	taken(n)
	if n < 0 || n > len(wrs) || n < len(wrs) && err == nil || n == len(wrs) && n > 0 && err != nil {
		f.reportInconsistentResult(fmt.Sprintf("%d of %d work requests accepted, error %v", n, len(wrs), err))
	}
	return n, err
}

// reportInconsistentResult reports an inconsistent result of a driver's method.
func (f *frame) reportInconsistentResult(what string) {
	f.k.report(Violation{
		Rule: RuleResult, What: f.what + ": " + what, Stacks: []Stack{{f.what, formatStack(f.entry)}},
	}, f.dev, f.entry)
}
