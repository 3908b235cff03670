package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"verbena/ib"
	"verbena/ib/ibtest/modeltest"
)

// Counters of a driver that wrap around.

var wrapChecks = []ruleTest{
	{
		name: "Wrap/Numbers",
		rule: "a number or key is not given twice at a time, however many objects there have been before, and nothing of them stays",
		test: testIDsAfterWrap, plain: true,
	},
	{
		name: "Wrap/Groups",
		rule: "a group that has been left has no effect on the number of groups that can be joined",
		test: testMcastGroupsAfterWrap, plain: true,
	},
	{
		name: "Wrap/Old",
		rule: "a device on which many objects have been created and destroyed agrees with the model, as a new one does",
		test: testModelAfterManyObjects, asleep: true, plain: true, either: true,
	},
	{
		name: "Wrap/Queues",
		rule: "queues of any length lose, double and exchange nothing, and notify their handlers, however many work requests there have been before",
		test: testQueuesAfterWrap, plain: true,
	},
}

const (
	// wrapTime is the time of each of these checks for one kind of object or queue.
	wrapTime = 200 * time.Millisecond
	// wrapCount limits the number of objects or messages. It exceeds the range of most counters.
	wrapCount = 1 << 18
)

// leastWrapCount is the least number of objects. With fewer objects, 1 KiB for each one would not exceed keptFree.
const leastWrapCount = 2048

// repeatUntilWrap calls f with increasing numbers until the limit of time or count. It returns the number of calls.
func (e *testEnv) repeatUntilWrap(f func(i int)) int {
	i := 0
	limit := wrapTime * time.Duration(e.cfg.load*e.cfg.load) / time.Duration(wrapDivisor())
	for began := time.Now(); i < leastWrapCount || i < wrapCount && time.Since(began) < limit; i++ {
		f(i)
	}
	return i
}

// wrapDivisor divides the time and the number of objects of these checks.
func wrapDivisor() int {
	if testing.Short() {
		return 8
	}
	return fewerWraps
}

// objectWithID is a live object with a number or key.
type objectWithID struct {
	number  uint32
	destroy func() error
}

// objectFactory is a kind of numbered objects.
type objectFactory struct {
	what string
	make func() (objectWithID, error)
}

// factoriesWithID returns the kinds of objects that have a number or key.
func factoriesWithID(dev *ib.Device, pd *ib.PD, cq *ib.CQ, memory ib.MRInit) []objectFactory {
	return []objectFactory{
		{"queue pair", func() (objectWithID, error) {
			q, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: minScaleCap})
			if err != nil {
				return objectWithID{}, err
			}
			return objectWithID{q.Num(), q.Destroy}, nil
		}},
		{"XRC shared receive queue", func() (objectWithID, error) {
			x, err := dev.AllocXRCD()
			if err != nil {
				return objectWithID{}, err
			}
			s, err := pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: cq, Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
			if err != nil {
				return objectWithID{}, errors.Join(err, x.Dealloc())
			}
			return objectWithID{s.Num(), func() error { return errors.Join(s.Destroy(), x.Dealloc()) }}, nil
		}},
		{"region", func() (objectWithID, error) {
			m, err := pd.RegMR(memory)
			if err != nil {
				return objectWithID{}, err
			}
			return objectWithID{m.RKey(), m.Dereg}, nil
		}},
		{"window", func() (objectWithID, error) {
			w, err := pd.AllocMW(ib.MWType2)
			if err != nil {
				return objectWithID{}, err
			}
			return objectWithID{w.RKey(), w.Dealloc}, nil
		}},
	}
}

// factoriesWithoutID returns the kinds of objects without a number, which is 0.
func factoriesWithoutID(e *testEnv, pd *ib.PD) []objectFactory {
	address := e.connector.ownAddress()
	return []objectFactory{
		{"address handle", func() (objectWithID, error) {
			ah, err := pd.CreateAH(&address)
			return objectWithID{0, func() error { return ah.Destroy() }}, err
		}},
		{"protection domain", func() (objectWithID, error) {
			pd, err := e.dev.AllocPD()
			return objectWithID{0, func() error { return pd.Dealloc() }}, err
		}},
		{"completion queue", func() (objectWithID, error) {
			cq, err := e.dev.CreateCQ(ib.CQInit{Entries: 1})
			return objectWithID{0, func() error { return cq.Destroy() }}, err
		}},
		{"shared receive queue", func() (objectWithID, error) {
			s, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
			return objectWithID{0, func() error { return s.Destroy() }}, err
		}},
		{"XRC domain", func() (objectWithID, error) {
			x, err := e.dev.AllocXRCD()
			return objectWithID{0, func() error { return x.Dealloc() }}, err
		}},
	}
}

// objectsWithoutIDCount is the number of objects without a number that are created and destroyed to find lost memory.
const objectsWithoutIDCount = 1 << 15

const (
	// keptBytes is the average memory per destroyed object that a driver may keep.
	keptBytes = 32
	// keptFree is the memory that it may keep in any case.
	keptFree = 1 << 20
)

// testIDsAfterWrap keeps a few objects of each kind while others are created and destroyed.
func testIDsAfterWrap(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(8, nil)
	_, addr := e.newMemory(64)
	numbers := factoriesWithID(e.dev, pd, cq, ib.MRInit{Space: e.mem, Addr: addr, Length: 64, Access: allAccess})
	for i, k := range append(slices.Clone(numbers), factoriesWithoutID(e, pd)...) {
		wraps := e.repeatUntilWrap
		if i >= len(numbers) {
			wraps = func(next func(int)) int {
				n := objectsWithoutIDCount / wrapDivisor()
				for i := range n {
					next(i)
				}
				return n
			}
		}
		kept := map[uint32]bool{}
		var all []objectWithID
		for range 3 {
			m, err := k.make()
			if err != nil {
				break // not supported by this driver
			}
			kept[m.number] = true
			all = append(all, m)
		}
		if len(all) == 3 {
			next := func(n int) {
				m, err := k.make()
				e.must(fmt.Sprintf("make %s %d, when all but three before are gone", k.what, n), err)
				if kept[m.number] && i < len(numbers) {
					e.Fatalf("%s %d has the number or key %#x of one that is there", k.what, i, m.number)
				}
				e.must("destroy "+k.what, m.destroy())
			}
			before := liveObjectBytes()
			n := wraps(next)
			more := liveObjectBytes() - before
			for i := 0; i < 4 && more > keptFree+keptBytes*n; i++ { // other threads of the process may have allocated it
				before = liveObjectBytes()
				for i := range n {
					next(i)
				}
				more = liveObjectBytes() - before
			}
			if more > keptFree+keptBytes*n {
				e.Errorf("%d objects, of kind %s, have been destroyed, and %d bytes stay", n, k.what, more)
			}
		}
		for _, m := range all {
			e.must("destroy "+k.what, m.destroy())
		}
	}
}

// testMcastGroupsAfterWrap joins more groups than the device has at a time, one after the other.
func testMcastGroupsAfterWrap(e *testEnv) {
	group := e.mcastAddressFunc()
	if group == nil {
		e.Skip("the driver has no multicast")
	}
	m := e.newGroupMember(e.newPD())
	for i := range min(2*e.deviceAttr().MaxMcastGrp, 1<<14) + 10 {
		if err := m.qp.AttachMcast(group(i+1), 0); err != nil {
			e.Fatalf("join group %d, after all others have been left: %v", i, err)
		}
		e.must("leave the group", m.qp.DetachMcast(group(i+1), 0))
	}
}

// liveObjectBytes returns the size of the live objects of the process.
func liveObjectBytes() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// earlierObjectCount is the count of objects of each kind before the runs of testModelAfterManyObjects. It exceeds 16
// bits.
const earlierObjectCount = 1<<16 + 100

// testModelAfterManyObjects runs the model on a device that has given out more numbers than 16 bits can hold.
func testModelAfterManyObjects(e *testEnv) {
	known := modeltest.NewDriverFeatures()
	target, end := modelFactory(e, *modelSeed, known)()
	pd, err := target.Device.AllocPD()
	e.must("allocate pd", err)
	cq, err := target.Device.CreateCQ(ib.CQInit{Entries: 1})
	e.must("create cq", err)
	_, addr := e.newMemory(64)
	memory := ib.MRInit{Space: e.mem, Addr: addr, Length: 64, Access: ib.AccessLocalWrite}
	for kind, k := range factoriesWithID(target.Device, pd, cq, memory) {
		if testing.Short() && kind > 0 {
			break
		}
		for i := range earlierObjectCount / oldDivisor {
			m, err := k.make()
			if i == 0 && err != nil {
				break // not supported by this driver
			}
			e.must("make "+k.what, err)
			e.must("destroy "+k.what, m.destroy())
		}
	}
	e.must("destroy cq", cq.Destroy())
	e.must("deallocate pd", pd.Dealloc())
	runs := max(1, seedCount(e)/8)
	if e.cfg.seeds < 0 {
		runs = 0
	}
	for i := range runs {
		seed := *modelSeed + uint64(i)
		if f := modeltest.RunOn(target, seed, *modelSteps); f != nil {
			e.Fatalf("%v\nrun it again: %s", f, repeatSeedCommand(e, seed))
		}
	}
	e.must("take the device away", end())
}

// testQueuesAfterWrap fills queues with lengths that are not powers of two, again and again, with a receive queue per
// queue pair, and with a shared one.
func testQueuesAfterWrap(e *testEnv) {
	pd := e.newPD()
	checkQueuesAfterWrap(e, pd, nil)
	srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: wrapQueueLen, MaxSGE: 1}})
	if err != nil {
		e.Logf("no shared receive queue: %v", err)
		return
	}
	checkQueuesAfterWrap(e, pd, destroyAtEnd(e, srq, srq.Destroy))
}

// wrapQueueLen is the length of each queue of testQueuesAfterWrap.
const wrapQueueLen = 3

// checkQueuesAfterWrap sends messages to a queue pair with its own receive queue, or with a shared one.
func checkQueuesAfterWrap(e *testEnv, pd *ib.PD, srq *ib.SRQ) {
	var calls [2]atomic.Int64
	p := &pair{e: e, pd: pd}
	for i := range p.qps {
		p.cqs[i] = e.newCQ(2*wrapQueueLen+1, func(*ib.CQ) { calls[i].Add(1) })
		p.buf[i] = e.newBuffer(pd, 64, allAccess)
		init := ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: p.cqs[i], RecvCQ: p.cqs[i],
			Cap: ib.QPCap{MaxSendWR: wrapQueueLen, MaxRecvWR: wrapQueueLen, MaxSendSGE: 1, MaxRecvSGE: 1}}
		if i == 1 && srq != nil {
			init.SRQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = srq, 0, 0
		}
		p.qps[i] = e.newQP(pd, init)
	}
	for i := range p.qps {
		e.connector.moveQPUpTo(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
	}
	arm := func() {
		for _, cq := range p.cqs {
			if _, err := cq.ReqNotify(ib.NotifyNextComp); err != nil {
				e.Fatalf("request notification: %v", err)
			}
		}
	}
	for range 1<<16 - 50 { // the messages come when 16 bits no longer count the requests for notification
		arm()
	}
	want := make([]byte, 8)
	received := func(i uint64) {
		e.waitOneCompletion(p.cqs[1], i, ib.WCSuccess)
		fillPattern(want, int(i))
		if got := p.buf[1].b[8*(i%wrapQueueLen):][:8]; !bytes.Equal(got, want) {
			e.Fatalf("message %d: got data %x, want %x", i, got, want)
		}
	}
	var id uint64
	e.repeatUntilWrap(func(round int) {
		first := id
		for range wrapQueueLen {
			wr := ib.RecvWR{ID: id, SGList: p.buf[1].newSGL(int(8*(id%wrapQueueLen)), 8)}
			if srq != nil {
				e.mustPostSRQ(srq, wr)
			} else if n, err := p.qps[1].PostRecv(wr); n != 1 || err != nil {
				e.Fatalf("post receive %d: got %d taken, %v, want 1", id, n, err)
			}
			id++
		}
		arm()
		for i := first; i < id; i++ {
			fillPattern(p.buf[0].b[:8], int(i))
			p.postSend(0, i, 8)
			e.waitOneCompletion(p.cqs[0], i, ib.WCSuccess)
			if i > first { // most polls leave a completion in the queue
				received(i - 1)
			}
		}
		received(id - 1)
		for i := range calls {
			if calls[i].Load() <= int64(round) {
				e.eventually(fmt.Sprintf("the call of the handler of queue %d in round %d", i, round),
					func() bool { return calls[i].Load() > int64(round) })
			}
		}
	})
}
