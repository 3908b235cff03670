package ibtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
)

// loadChecks run last, because their findings are hard to attribute.
var loadChecks = []ruleTest{
	{
		name: "Load/EveryMethodAgainstEvery",
		rule: "every method may be called at the same time as every other on the same objects",
		test: testConcurrentMethods, fast: true,
	},
}

// randomCalls is a set of functions that threads call at random. Each returns an error on failure.
type randomCalls map[string]func(r *rand.Rand) error

// runConcurrently calls the functions on several threads, and reports all but the tolerated errors.
func (w randomCalls) runConcurrently(e *testEnv, threads, rounds int, tolerated ...syscall.Errno) {
	e.Helper()
	names := make([]string, 0, len(w))
	for n := range w {
		names = append(names, n)
	}
	slices.Sort(names)
	var wg sync.WaitGroup
	for t := range threads {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(t)))
			for range rounds {
				name := names[r.IntN(len(names))]
				err := w[name](r)
				ok := err == nil
				for _, n := range tolerated {
					ok = ok || errors.Is(err, n)
				}
				if !ok {
					e.Errorf("%s, among others at the same time: %v", name, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(time.Duration(threads*rounds)*time.Millisecond + 2*e.cfg.timeout):
		buf := make([]byte, 1<<16)
		e.Fatalf("threads wait for one another:\n%s", buf[:runtime.Stack(buf, true)])
	}
	if e.Failed() {
		e.FailNow()
	}
}

func testConcurrentMethods(e *testEnv) {
	again := func(cq *ib.CQ) { cq.ReqNotify(ib.NotifyNextComp) }
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, entries: 4 * e.queueLen, handlers: [2]func(*ib.CQ){again, again}})
	t := p.newMessageSender()
	stop := e.dev.OnEvent(func(ib.Event) {})
	defer stop()
	l, w := newRequestCountingPair(e, p), randomCalls{}
	l.addDataPath(e, w)
	if !t.write {
		delete(w, "post write")
	}
	l.addControlPath(e, w)
	w["callbacks"] = func(r *rand.Rand) error {
		e.handle.HoldCallbacks()
		err := l.pollSide(0, make([]ib.WC, 1))
		e.handle.RunCallbacks()
		return err
	}
	w.addDatagrams(e)
	w.addErrorQP(e)
	w.addSRQ(e)
	w.addObjectCreation(e)
	w.runConcurrently(e, 8, 250*e.cfg.load, syscall.ENOMEM)
	l.completeAll(e)
}

// requestCountingPair counts the work requests and completions of a connected pair that several threads use.
type requestCountingPair struct {
	*pair
	posted, polled [2]atomic.Int64  // number of completions expected, and polled, on each side
	credit         [2]chan struct{} // completions that need an entry of the CQ
	room           [2]chan struct{} // receives without a send so far
}

func newRequestCountingPair(e *testEnv, p *pair) *requestCountingPair {
	l := &requestCountingPair{pair: p}
	for i := range l.credit {
		l.credit[i] = make(chan struct{}, 3*e.queueLen)
		l.room[i] = make(chan struct{}, 3*e.queueLen)
	}
	return l
}

// postIfRoom calls post on a side if the CQ has an entry for its completion.
func (l *requestCountingPair) postIfRoom(i int, post func() (int, error)) (int, error) {
	select {
	case l.credit[i] <- struct{}{}:
	default:
		return 0, nil
	}
	n, err := post()
	if l.posted[i].Add(int64(n)); n == 0 {
		select {
		case <-l.credit[i]:
		default: // an extra completion has used it
		}
	}
	return n, err
}

func (l *requestCountingPair) pollSide(i int, wc []ib.WC) error {
	n, err := l.cqs[i].Poll(wc)
	l.polled[i].Add(int64(n))
	for _, w := range wc[:max(n, 0)] {
		select {
		case <-l.credit[i]:
		default:
			return errors.New("a completion more than work requests were posted")
		}
		if w.Status != ib.WCSuccess {
			return fmt.Errorf("completion with %q", w.Status)
		}
	}
	return err
}

func (l *requestCountingPair) sendFrom(i int) (int, error) {
	return l.postIfRoom(i, func() (int, error) {
		return l.qps[i].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: l.buf[i].newSGL(8, 8)})
	})
}

// addDataPath adds the methods of the data path and of its objects.
func (l *requestCountingPair) addDataPath(e *testEnv, w randomCalls) {
	w["post receive"] = func(r *rand.Rand) error {
		i := r.IntN(2)
		n, err := l.postIfRoom(i, func() (int, error) { return l.qps[i].PostRecv(ib.RecvWR{SGList: l.buf[i].newSGL(0, 8)}) })
		if n > 0 {
			l.room[i] <- struct{}{}
		}
		return err
	}
	w["post send"] = func(r *rand.Rand) error {
		i := r.IntN(2)
		select {
		case <-l.room[1-i]:
		default:
			return nil
		}
		n, err := l.sendFrom(i)
		if n == 0 {
			l.room[1-i] <- struct{}{}
		}
		return err
	}
	w["post write"] = func(r *rand.Rand) error {
		i := r.IntN(2)
		_, err := l.postIfRoom(i, func() (int, error) {
			return l.qps[i].PostSend(ib.SendWR{
				Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: l.buf[i].newSGL(16, 8),
				RemoteAddr: l.buf[1-i].addr + 64, RKey: l.buf[1-i].mr.RKey(),
			})
		})
		return err
	}
	w["poll"] = func(r *rand.Rand) error { return l.pollSide(r.IntN(2), make([]ib.WC, 1+r.IntN(8))) }
	w["request notify"] = func(r *rand.Rand) error { return errorOf(l.cqs[r.IntN(2)].ReqNotify(ib.NotifyNextComp)) }
	w["state"] = func(r *rand.Rand) error {
		if s := l.qps[r.IntN(2)].State(); s != ib.QPRTS {
			return fmt.Errorf("state is %v", s)
		}
		return nil
	}
	w["query qp"] = func(r *rand.Rand) error {
		a, _, err := l.qps[r.IntN(2)].Query(0)
		if err == nil && a.State != ib.QPRTS {
			err = fmt.Errorf("state is %v", a.State)
		}
		return err
	}
	w["modify qp"] = func(r *rand.Rand) error {
		return l.qps[r.IntN(2)].Modify(ib.QPAttr{State: ib.QPRTS, AccessFlags: remote}, ib.QPAttrState|ib.QPAttrAccessFlags)
	}
	w["resize cq"] = func(r *rand.Rand) error {
		err := l.cqs[r.IntN(2)].Resize(4*e.queueLen + r.IntN(10))
		if errors.Is(err, syscall.EOPNOTSUPP) {
			return nil
		}
		return err
	}
}

// addControlPath adds the methods that query the device, and create and destroy objects beside those in use.
func (l *requestCountingPair) addControlPath(e *testEnv, w randomCalls) {
	w["query"] = func(r *rand.Rand) error {
		_, err := e.dev.QueryDevice()
		return errors.Join(err, errorOf(e.dev.QueryPort(1)), errorOf(e.dev.QueryGID(1, e.connector.gidIndex)),
			errorOf(e.dev.QueryPKey(1, 0)))
	}
	w["pd"] = func(r *rand.Rand) error {
		pd, err := e.dev.AllocPD()
		if err != nil {
			return err
		}
		return pd.Dealloc()
	}
	w["mr"] = func(r *rand.Rand) error {
		mr, err := l.pd.RegMR(ib.MRInit{Space: e.mem, Addr: l.buf[0].addr, Length: 64, Access: ib.AccessLocalWrite})
		if err != nil {
			return err
		}
		return mr.Dereg()
	}
	w["cq"] = func(r *rand.Rand) error {
		cq, err := e.dev.CreateCQ(ib.CQInit{Entries: 4})
		if err != nil {
			return err
		}
		return cq.Destroy()
	}
	w["qp"] = func(r *rand.Rand) error {
		qp, err := l.pd.CreateQP(ib.QPInitAttr{
			SendCQ: l.cqs[0], RecvCQ: l.cqs[1], Type: ib.QPTypeRC,
			Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
		if err != nil {
			return err
		}
		return qp.Destroy()
	}
	w["ah"] = func(r *rand.Rand) error {
		a := e.connector.ownAddress()
		ah, err := l.pd.CreateAH(&a)
		if errors.Is(err, syscall.EOPNOTSUPP) {
			return nil
		} else if err != nil {
			return err
		}
		return errors.Join(errorOf(ah.Query()), ah.Modify(&a), ah.Destroy())
	}
	w["event"] = func(r *rand.Rand) error { e.handle.DispatchEvent(ib.EventClientReregister, 1); return nil }
}

// completeAll posts a send for each receive, and waits until every work request has completed, once.
func (l *requestCountingPair) completeAll(e *testEnv) {
	for i := range l.qps {
		for len(l.room[i]) > 0 {
			n, err := l.sendFrom(1 - i)
			if n > 0 {
				<-l.room[i]
			} else if err != nil && !errors.Is(err, syscall.ENOMEM) {
				e.Fatalf("post send: %v", err)
			}
			e.must("poll", errors.Join(l.pollSide(0, make([]ib.WC, 8)), l.pollSide(1, make([]ib.WC, 8))))
		}
	}
	for i := range l.cqs {
		e.eventually("every completion", func() bool {
			e.must("poll", l.pollSide(i, make([]ib.WC, 16)))
			return l.polled[i].Load() >= l.posted[i].Load()
		})
	}
	e.awaitDueCallbacks()
	for i, cq := range l.cqs {
		if n, _ := cq.Poll(make([]ib.WC, 1)); n != 0 || l.polled[i].Load() != l.posted[i].Load() {
			e.Errorf("side %d: %d completions of %d work requests", i, l.polled[i].Load()+int64(n), l.posted[i].Load())
		}
	}
}

// addDatagrams adds the methods of an address handle in use, and of the queue pairs that send and receive datagrams, if
// the driver supports them.
func (w randomCalls) addDatagrams(e *testEnv) {
	e.Helper()
	pd := e.newPD()
	a := e.connector.ownAddress()
	ah, err := pd.CreateAH(&a)
	if err != nil {
		return
	}
	destroyAtEnd(e, ah, ah.Destroy)
	p := e.newPairIfSupported(ib.QPTypeUD, pd)
	if p == nil {
		return
	}
	var room atomic.Int64 // free entries for completions of the sends
	room.Store(int64(e.queueLen))
	w["post datagram"] = func(r *rand.Rand) error {
		if room.Add(-1) < 0 {
			room.Add(1)
			return nil
		}
		n, err := p.qps[0].PostSend(p.newDatagramRequest(1, ah, 8))
		if n == 0 {
			room.Add(1)
		}
		return err
	}
	w["poll datagrams"] = func(r *rand.Rand) error {
		n, err := p.cqs[0].Poll(make([]ib.WC, 4))
		room.Add(int64(n))
		return err
	}
	w["modify ah in use"] = func(*rand.Rand) error { return ah.Modify(&a) }
	w["query ah in use"] = func(*rand.Rand) error { return errorOf(ah.Query()) }
	w["modify qp of datagrams"] = func(r *rand.Rand) error {
		return p.qps[r.IntN(2)].Modify(ib.QPAttr{QKey: qkey}, ib.QPAttrQKey)
	}
}

// addErrorQP adds the methods of a queue pair in the error state, whose work requests complete with an error.
func (w randomCalls) addErrorQP(e *testEnv) {
	e.Helper()
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	e.must("modify to ERR", p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	var room atomic.Int64 // free entries of the completion queue
	room.Store(int64(e.queueLen))
	post := func(post func() (int, error)) error {
		if room.Add(-1) < 0 {
			room.Add(1)
			return nil
		}
		n, err := post()
		if n == 0 {
			room.Add(1)
		}
		return err
	}
	w["post flushed send"] = func(*rand.Rand) error {
		return post(func() (int, error) {
			return p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: p.buf[0].newSGL(0, 8)})
		})
	}
	w["post flushed receive"] = func(*rand.Rand) error {
		return post(func() (int, error) { return p.qps[0].PostRecv(ib.RecvWR{SGList: p.buf[0].newSGL(0, 8)}) })
	}
	w["poll flushed"] = func(r *rand.Rand) error {
		wc := make([]ib.WC, 1+r.IntN(4))
		n, err := p.cqs[0].Poll(wc)
		for _, c := range wc[:max(n, 0)] {
			if c.Status != ib.WCWRFlushErr {
				err = fmt.Errorf("completion with %q in the error state", c.Status)
			}
		}
		room.Add(int64(n))
		return err
	}
	w["request notify flushed"] = func(*rand.Rand) error { return errorOf(p.cqs[0].ReqNotify(ib.NotifyNextComp)) }
	w["modify flushed"] = func(*rand.Rand) error {
		return p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
	}
}

// addSRQ adds the methods of a shared receive queue in use, if the driver supports them.
func (w randomCalls) addSRQ(e *testEnv) {
	e.Helper()
	pd := e.newPD()
	length := uint32(e.queueLen)
	srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: length, MaxSGE: 1}})
	if err != nil {
		return
	}
	destroyAtEnd(e, srq, srq.Destroy)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
	var room atomic.Int64 // messages that fit into all queues
	room.Store(int64(e.queueLen))
	w["message to a shared queue"] = func(*rand.Rand) error {
		if room.Add(-1) < 0 {
			room.Add(1)
			return nil
		}
		n, err := srq.PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(0, 8)})
		if n == 1 {
			n, err = p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)})
		}
		if n == 0 && err == nil {
			err = errors.New("0 work requests taken without an error")
		}
		return err
	}
	var mu sync.Mutex
	var received [2]int // completions of each side whose message is not complete
	w["poll of a shared queue"] = func(r *rand.Rand) error {
		i := r.IntN(2)
		wc := make([]ib.WC, 4)
		n, err := p.cqs[i].Poll(wc)
		for _, c := range wc[:max(n, 0)] {
			if c.Status != ib.WCSuccess {
				err = fmt.Errorf("completion with %q", c.Status)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		received[i] += n
		complete := min(received[0], received[1])
		received[0] -= complete
		received[1] -= complete
		room.Add(int64(complete))
		return err
	}
	w["query srq"] = func(*rand.Rand) error { return errorOf(srq.Query()) }
	w["arm srq"] = func(r *rand.Rand) error {
		err := srq.Modify(ib.SRQAttr{Limit: uint32(r.IntN(e.queueLen))}, ib.SRQAttrLimit)
		if errors.Is(err, syscall.EOPNOTSUPP) {
			return nil
		}
		return err
	}
}

// addObjectCreation adds the creation and destruction of windows, fast registrations and domains, and the changes of a
// region and of a multicast group.
func (w randomCalls) addObjectCreation(e *testEnv) {
	e.Helper()
	pd := e.newPD()
	made := func(what string, create func() (func() error, error)) {
		w[what] = func(*rand.Rand) error {
			destroy, err := create()
			switch {
			case errors.Is(err, syscall.EOPNOTSUPP):
				return nil
			case err != nil:
				return err
			}
			return destroy()
		}
	}
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		made(fmt.Sprintf("window of type %d", kind), func() (func() error, error) {
			mw, err := pd.AllocMW(kind)
			if errors.Is(err, syscall.EINVAL) {
				err = syscall.EOPNOTSUPP
			}
			return mw.Dealloc, err
		})
	}
	made("fast registration", func() (func() error, error) {
		mr, err := pd.AllocMR(1)
		return mr.Dereg, err
	})
	made("xrcd", func() (func() error, error) {
		x, err := e.dev.AllocXRCD()
		return x.Dealloc, err
	})
	made("srq", func() (func() error, error) {
		srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
		return srq.Destroy, err
	})
	groups := e.mcastAddressFunc()
	qp := e.newQPOfType(ib.QPTypeUD, pd, e.newCQ(1, nil))
	if groups == nil || qp == nil {
		return
	}
	e.connector.moveQPUpTo(qp, 0, ib.QPRTS)
	group := groups(0)
	var member sync.Mutex
	w["multicast group"] = func(*rand.Rand) error {
		if !member.TryLock() {
			return nil
		}
		defer member.Unlock()
		if err := qp.AttachMcast(group, 0); err != nil {
			return err
		}
		return qp.DetachMcast(group, 0)
	}
}
