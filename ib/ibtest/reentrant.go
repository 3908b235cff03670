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

// Point 2: every method is fully reentrant.

var reentrantChecks = []ruleTest{
	{
		name: "Reentrant/ConcurrentPoll",
		rule: "of several that poll one CQ each gets other completions, and together they get all",
		test: testConcurrentPoll, fast: true,
	},
	{
		name: "Reentrant/ConcurrentPost",
		rule: "several may post on one queue pair; what each posts is done in its order",
		test: testConcurrentPost, fast: true,
	},
	{
		name: "Reentrant/CreateDestroy",
		rule: "objects come and go while others are used",
		test: testCreateDestroy, fast: true,
	},
	{
		name: "Reentrant/DestroyUnderTraffic",
		rule: "a queue pair can be destroyed while messages for it are on their way",
		test: testDestroyUnderTraffic, fast: true,
	},
}

// loadChecks run last, because their findings are hard to attribute.
var loadChecks = []ruleTest{
	{
		name: "Load/EveryMethodAgainstEvery",
		rule: "every method may be called at the same time as every other on the same objects",
		test: testEveryMethod, fast: true,
	},
}

// works is a set of functions that threads call at random. Each returns an error on failure.
type works map[string]func(r *rand.Rand) error

// run calls the functions on several threads, and reports all but the tolerated errors.
func (w works) run(e *env, threads, rounds int, tolerated ...syscall.Errno) {
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

func testEveryMethod(e *env) {
	again := func(cq *ib.CQ) { cq.ReqNotify(ib.NotifyNextComp) }
	p := e.pair(pairConfig{kind: ib.QPTypeRC, entries: 4 * e.queueLen, handlers: [2]func(*ib.CQ){again, again}})
	t := p.traffic()
	stop := e.dev.OnEvent(func(ib.Event) {})
	defer stop()
	l, w := newLedger(e, p), works{}
	l.addData(e, w)
	if !t.write {
		delete(w, "post write")
	}
	l.addControl(e, w)
	w["callbacks"] = func(r *rand.Rand) error {
		e.handle.HoldCallbacks()
		err := l.poll(0, make([]ib.WC, 1))
		e.handle.RunCallbacks()
		return err
	}
	e.addDatagrams(w)
	w.run(e, 8, 250*e.cfg.load, syscall.ENOMEM)
	l.finish(e)
}

// ledger counts the work requests and completions of a connected pair that several threads use.
type ledger struct {
	*pair
	posted, polled [2]atomic.Int64  // number of completions expected, and polled, on each side
	credit         [2]chan struct{} // completions that need an entry of the CQ
	room           [2]chan struct{} // receives without a send so far
}

func newLedger(e *env, p *pair) *ledger {
	l := &ledger{pair: p}
	for i := range l.credit {
		l.credit[i] = make(chan struct{}, 3*e.queueLen)
		l.room[i] = make(chan struct{}, 3*e.queueLen)
	}
	return l
}

// try calls post on a side if the CQ has an entry for its completion.
func (l *ledger) try(i int, post func() (int, error)) (int, error) {
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

func (l *ledger) poll(i int, wc []ib.WC) error {
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

func (l *ledger) send(i int) (int, error) {
	return l.try(i, func() (int, error) {
		return l.qps[i].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: l.buf[i].sgl(8, 8)})
	})
}

// addData adds the methods of the data path and of its objects.
func (l *ledger) addData(e *env, w works) {
	w["post receive"] = func(r *rand.Rand) error {
		i := r.IntN(2)
		n, err := l.try(i, func() (int, error) { return l.qps[i].PostRecv(ib.RecvWR{SGList: l.buf[i].sgl(0, 8)}) })
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
		n, err := l.send(i)
		if n == 0 {
			l.room[1-i] <- struct{}{}
		}
		return err
	}
	w["post write"] = func(r *rand.Rand) error {
		i := r.IntN(2)
		_, err := l.try(i, func() (int, error) {
			return l.qps[i].PostSend(ib.SendWR{
				Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: l.buf[i].sgl(16, 8),
				RemoteAddr: l.buf[1-i].addr + 64, RKey: l.buf[1-i].mr.RKey(),
			})
		})
		return err
	}
	w["poll"] = func(r *rand.Rand) error { return l.poll(r.IntN(2), make([]ib.WC, 1+r.IntN(8))) }
	w["request notify"] = func(r *rand.Rand) error { return second(l.cqs[r.IntN(2)].ReqNotify(ib.NotifyNextComp)) }
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

// addControl adds the methods that query the device, and create and destroy objects beside those in use.
func (l *ledger) addControl(e *env, w works) {
	w["query"] = func(r *rand.Rand) error {
		_, err := e.dev.QueryDevice()
		return errors.Join(err, second(e.dev.QueryPort(1)), second(e.dev.QueryGID(1, e.gidIndex)),
			second(e.dev.QueryPKey(1, 0)))
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
		a := e.address()
		ah, err := l.pd.CreateAH(&a)
		if errors.Is(err, syscall.EOPNOTSUPP) {
			return nil
		} else if err != nil {
			return err
		}
		return errors.Join(second(ah.Query()), ah.Modify(&a), ah.Destroy())
	}
	w["event"] = func(r *rand.Rand) error { e.handle.DispatchEvent(ib.EventClientReregister, 1); return nil }
}

// finish posts a send for each receive, and waits until every work request has completed, once.
func (l *ledger) finish(e *env) {
	for i := range l.qps {
		for len(l.room[i]) > 0 {
			n, err := l.send(1 - i)
			if n > 0 {
				<-l.room[i]
			} else if err != nil && !errors.Is(err, syscall.ENOMEM) {
				e.Fatalf("post send: %v", err)
			}
			e.must("poll", errors.Join(l.poll(0, make([]ib.WC, 8)), l.poll(1, make([]ib.WC, 8))))
		}
	}
	for i := range l.cqs {
		e.eventually("every completion", func() bool {
			e.must("poll", l.poll(i, make([]ib.WC, 16)))
			return l.polled[i].Load() >= l.posted[i].Load()
		})
	}
	e.settle()
	for i, cq := range l.cqs {
		if n, _ := cq.Poll(make([]ib.WC, 1)); n != 0 || l.polled[i].Load() != l.posted[i].Load() {
			e.Errorf("side %d: %d completions of %d work requests", i, l.polled[i].Load()+int64(n), l.posted[i].Load())
		}
	}
}

// addDatagrams adds the methods of an address handle in use, and of the queue pairs that send and receive datagrams, if
// the driver supports them.
func (e *env) addDatagrams(w works) {
	e.Helper()
	pd := e.pd()
	a := e.address()
	ah, err := pd.CreateAH(&a)
	if err != nil {
		return
	}
	own(e, ah, ah.Destroy)
	p := e.tryPair(ib.QPTypeUD, pd)
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
		n, err := p.qps[0].PostSend(p.datagram(1, ah, 8))
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
	w["query ah in use"] = func(*rand.Rand) error { return second(ah.Query()) }
	w["modify qp of datagrams"] = func(r *rand.Rand) error {
		return p.qps[r.IntN(2)].Modify(ib.QPAttr{QKey: qkey}, ib.QPAttrQKey)
	}
}

func second[T any](_ T, err error) error { return err }

func testConcurrentPoll(e *env) {
	const pollers = 4
	total := 2000 * e.cfg.load
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	messages := p.traffic()
	var mu sync.Mutex
	seen := map[uint64]int{}
	var count atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for t := range pollers {
		wg.Go(func() {
			for !stop.Load() && count.Load() < int64(total) {
				wc := make([]ib.WC, 1+t)
				n, err := p.cqs[0].Poll(wc)
				if err != nil || n < 0 || n > len(wc) {
					e.Errorf("poll: %d, %v", n, err)
					return
				}
				mu.Lock()
				for _, w := range wc[:n] {
					if seen[w.ID]++; seen[w.ID] == 2 {
						e.Errorf("completion %d was seen twice", w.ID)
					}
				}
				mu.Unlock()
				if count.Add(int64(n)); n == 0 {
					pause()
				}
			}
		})
	}
	defer func() {
		stop.Store(true)
		wg.Wait()
	}()
	for sent := 0; sent < total && !e.Failed(); { // as many in flight as possible, so that the threads meet in the queue
		n := min(e.queueLen, total-sent)
		wrs := make([]ib.SendWR, n)
		for i := range wrs {
			wrs[i] = messages.message(uint64(sent+i), 8)
			messages.ready(uint64(sent+i), 8)
		}
		if k, err := p.qps[0].PostSend(wrs...); k != n {
			e.Fatalf("post send: %d of %d taken, %v", k, n, err)
		}
		for i := range wrs {
			messages.arrived(uint64(sent + i))
		}
		sent += n
		e.eventually("all completions", func() bool { return e.Failed() || count.Load() >= int64(sent) })
	}
	stop.Store(true)
	wg.Wait()
	for id := range uint64(total) {
		if seen[id] == 0 {
			e.Errorf("completion %d was lost", id)
		}
	}
}

func testConcurrentPost(e *env) {
	const posters = 4
	each := 300 * e.cfg.load
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	messages := p.traffic()
	for range e.queueLen { // one for each outstanding request
		messages.ready(0, 8)
	}
	credit, quit := make(chan struct{}, e.queueLen), make(chan struct{}) // completions that need an entry of the CQ
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(quit)
	for t := range posters {
		wg.Go(func() {
			for k := 0; k < each; {
				wrs := make([]ib.SendWR, min(1+k%3, each-k))
				for i := range wrs {
					wrs[i] = messages.message(uint64(t)<<32|uint64(k+i), 8)
					select {
					case credit <- struct{}{}:
					case <-quit:
						return
					}
				}
				n, err := p.qps[0].PostSend(wrs...)
				k += n
				for range len(wrs) - n {
					select {
					case <-credit:
					case <-quit:
						return
					}
				}
				if errors.Is(err, syscall.ENOMEM) {
					pause()
				} else if err != nil {
					e.Errorf("post send: %v", err)
					return
				}
			}
		})
	}
	next := [posters]uint64{}
	for range posters * each {
		wc := e.wait(p.cqs[0], 1)[0]
		messages.arrived(0)
		messages.ready(0, 8)
		select {
		case <-credit:
		default:
			e.Fatalf("completion of work request %#x, and there is none outstanding", wc.ID)
		}
		t, k := wc.ID>>32, wc.ID&0xffffffff
		if wc.Status != ib.WCSuccess || t >= posters || k != next[t] {
			e.Fatalf("work request %d of thread %d completed with %q, expected number %d", k, t, wc.Status,
				next[min(t, posters-1)])
		}
		next[t]++
	}
}

func testCreateDestroy(e *env) {
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	var messages atomic.Int64 // each arrives at its own address
	w := works{
		"message path": func(r *rand.Rand) error {
			cq, err := e.dev.CreateCQ(ib.CQInit{Entries: 8, Handler: func(cq *ib.CQ) { cq.ReqNotify(ib.NotifyNextComp) }})
			if err != nil {
				return err
			}
			cq.ReqNotify(ib.NotifyNextComp)
			var qps [2]*ib.QP
			for i := range qps {
				if qps[i], err = p.pd.CreateQP(ib.QPInitAttr{
					SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
					Cap: ib.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
				}); err != nil {
					return err
				}
			}
			for i := range qps {
				for s := ib.QPInit; s <= ib.QPRTS; s++ {
					if err := qps[i].Modify(e.attr(s, qps[1-i].Num()), upMask(ib.QPTypeRC, s)); err != nil {
						return err
					}
				}
			}
			at := int(messages.Add(1)) * 8 % len(p.buf[1].b)
			_, err = qps[1].PostRecv(ib.RecvWR{SGList: p.buf[1].sgl(at, 8)})
			if err == nil {
				_, err = qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].sgl(0, 8)})
			}
			if err == nil {
				err = e.spin(cq, 2)
			}
			return errors.Join(err, qps[0].Destroy(), qps[1].Destroy(), cq.Destroy())
		},
		"memory": func(r *rand.Rand) error {
			pd, err := e.dev.AllocPD()
			if err != nil {
				return err
			}
			mr, err := pd.RegMR(ib.MRInit{Space: e.mem, Addr: p.buf[0].addr, Length: 64, IOVA: 0, Access: ib.AccessLocalWrite})
			if err != nil {
				return err
			}
			return errors.Join(mr.Dereg(), pd.Dealloc())
		},
	}
	w.run(e, 6, 40*e.cfg.load)
	p.exchange(0, 1, 100)
}

func testDestroyUnderTraffic(e *env) {
	for range 20 * e.cfg.load {
		p := e.pair(pairConfig{kind: ib.QPTypeRC, entries: 4 * e.queueLen})
		for k := range e.queueLen {
			p.recv(1, uint64(k), 0, 8)
		}
		var wg sync.WaitGroup
		wg.Go(func() { // until the peer's destruction makes them fail
			for range e.queueLen {
				p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].sgl(0, 8)})
			}
		})
		pause()
		e.destroy(p.qps[1])
		wg.Wait()
		e.destroy(p.qps[0])
		for _, x := range []any{p.cqs[0], p.cqs[1], p.buf[0].mr, p.buf[1].mr, p.pd} {
			e.destroy(x)
		}
	}
}
