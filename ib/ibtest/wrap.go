package ibtest

import (
	"fmt"
	"time"

	"verbena/ib"
)

// Counters of a driver that wrap around.

var wrapChecks = []ruleTest{
	{
		name: "Wrap/Numbers",
		rule: "a number or key is not given twice at a time, however many objects there have been before",
		test: testNumbersWrap, plain: true,
	},
	{
		name: "Wrap/Queues",
		rule: "queues of any length lose, double and exchange nothing, however many work requests there have been before",
		test: testQueuesWrap, plain: true,
	},
}

const (
	// wrapTime is the time of each of these checks for one kind of object or queue.
	wrapTime = 200 * time.Millisecond
	// wrapCount limits the number of objects or messages. It exceeds the range of most counters.
	wrapCount = 1 << 18
)

// wraps calls f with increasing numbers until the limit of time or count.
func (e *env) wraps(f func(i int)) {
	for i, began := 0, time.Now(); i < wrapCount &&
		time.Since(began) < wrapTime*time.Duration(e.cfg.load*e.cfg.load); i++ {
		f(i)
	}
}

// testNumbersWrap keeps a few objects of each kind while others are created and destroyed.
func testNumbersWrap(e *env) {
	pd, cq := e.pd(), e.cq(8, nil)
	_, addr := e.memory(64)
	type made struct {
		number  uint32
		destroy func() error
	}
	for _, k := range []struct {
		what string
		make func() (made, error)
	}{
		{"queue pair", func() (made, error) {
			q, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
				Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			if err != nil {
				return made{}, err
			}
			return made{q.Num(), q.Destroy}, nil
		}},
		{"region", func() (made, error) {
			m, err := pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr, Length: 64, Access: allAccess})
			if err != nil {
				return made{}, err
			}
			return made{m.RKey(), m.Dereg}, nil
		}},
		{"window", func() (made, error) {
			w, err := pd.AllocMW(ib.MWType2)
			if err != nil {
				return made{}, err
			}
			return made{w.RKey(), w.Dealloc}, nil
		}},
	} {
		kept := map[uint32]bool{}
		var all []made
		for range 3 {
			m, err := k.make()
			if err != nil {
				break // not supported by this driver
			}
			kept[m.number] = true
			all = append(all, m)
		}
		if len(all) == 3 {
			e.wraps(func(i int) {
				m, err := k.make()
				e.must(fmt.Sprintf("make %s %d, when all but three before are gone", k.what, i), err)
				if kept[m.number] {
					e.Fatalf("%s %d has the number or key %#x of one that is there", k.what, i, m.number)
				}
				e.must("destroy "+k.what, m.destroy())
			})
		}
		for _, m := range all {
			e.must("destroy "+k.what, m.destroy())
		}
	}
}

// testQueuesWrap fills queues with lengths that are not powers of two, again and again.
func testQueuesWrap(e *env) {
	pd := e.pd()
	const length = 3
	init := ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: length, MaxRecvWR: length, MaxSendSGE: 1,
		MaxRecvSGE: 1}}
	p := &pair{e: e, pd: pd}
	for i := range p.qps {
		p.cqs[i] = e.cq(2*length+1, nil)
		p.buf[i] = e.buffer(pd, 64, allAccess)
		init.SendCQ, init.RecvCQ = p.cqs[i], p.cqs[i]
		p.qps[i] = e.qp(pd, init)
	}
	for i := range p.qps {
		e.up(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
	}
	var id uint64
	e.wraps(func(int) {
		first := id
		for range length {
			p.recv(1, id, 0, 8)
			id++
		}
		for i := first; i < id; i++ {
			p.send(0, i, 8)
		}
		for side := range p.cqs {
			for i, wc := range e.wait(p.cqs[side], length) {
				if want := first + uint64(i); wc.ID != want || wc.Status != ib.WCSuccess {
					e.Fatalf("side %d: completion of work request %d with %q, want %d", side, wc.ID, wc.Status, want)
				}
			}
		}
	})
}
