package ibtest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"

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
		test: testConcurrentCreateDestroy, fast: true,
	},
	{
		name: "Reentrant/DestroyUnderTraffic",
		rule: "a queue pair can be destroyed while messages for it are on their way",
		test: testDestroyUnderTraffic, fast: true,
	},
}

func errorOf[T any](_ T, err error) error { return err }

func testConcurrentPoll(e *testEnv) {
	const pollers = 4
	total := 2000 * e.cfg.load
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	messages := p.newMessageSender()
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
					yieldBriefly()
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
			wrs[i] = messages.newMessageRequest(uint64(sent+i), 8)
			messages.prepareReceive(uint64(sent+i), 8)
		}
		if k, err := p.qps[0].PostSend(wrs...); k != n {
			e.Fatalf("post send: %d of %d taken, %v", k, n, err)
		}
		for i := range wrs {
			messages.waitMessageArrived(uint64(sent + i))
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

func testConcurrentPost(e *testEnv) {
	const posters = 4
	each := 300 * e.cfg.load
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	messages := p.newMessageSender()
	for range e.queueLen { // one for each outstanding request
		messages.prepareReceive(0, 8)
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
					wrs[i] = messages.newMessageRequest(uint64(t)<<32|uint64(k+i), 8)
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
					yieldBriefly()
				} else if err != nil {
					e.Errorf("post send: %v", err)
					return
				}
			}
		})
	}
	next := [posters]uint64{}
	for range posters * each {
		wc := e.waitCompletions(p.cqs[0], 1)[0]
		messages.waitMessageArrived(0)
		messages.prepareReceive(0, 8)
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

func testConcurrentCreateDestroy(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	var messages atomic.Int64 // each arrives at its own address
	w := randomCalls{
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
					if err := qps[i].Modify(e.connector.newQPAttr(s, qps[1-i].Num()), transitionMask(ib.QPTypeRC, s)); err != nil {
						return err
					}
				}
			}
			at := int(messages.Add(1)) * 8 % len(p.buf[1].b)
			_, err = qps[1].PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(at, 8)})
			if err == nil {
				_, err = qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)})
			}
			if err == nil {
				err = e.pollWithRetry(cq, 2)
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
	w.runConcurrently(e, 6, 40*e.cfg.load)
	p.exchangeMessage(0, 1, 100)
}

func testDestroyUnderTraffic(e *testEnv) {
	for range 20 * e.cfg.load {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, entries: 4 * e.queueLen})
		for k := range e.queueLen {
			p.postRecv(1, uint64(k), 0, 8)
		}
		var wg sync.WaitGroup
		wg.Go(func() { // until the peer's destruction makes them fail
			for range e.queueLen {
				p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)})
			}
		})
		yieldBriefly()
		e.destroy(p.qps[1])
		wg.Wait()
		e.destroy(p.qps[0])
		for _, x := range []any{p.cqs[0], p.cqs[1], p.buf[0].mr, p.buf[1].mr, p.pd} {
			e.destroy(x)
		}
	}
}
