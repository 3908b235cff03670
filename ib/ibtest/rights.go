package ibtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/check"
)

// Local keys, the lifetime of keys, and the end of accesses.

var rightsChecks = []ruleTest{
	{
		name: "Data/LocalRights",
		rule: "a local key gives only the domain it was made in; what comes in, by a receive, a read or an atomic, needs the local right to write",
		test: testLocalKeyRights,
	},
	{
		name: "Data/KeyReuse",
		rule: "the key of a region or window that is gone is not given to those that are made next",
		test: testKeyIsNotReusedAtOnce,
	},
	{
		name: "Data/KeysUnique",
		rule: "a key or number belongs to one object at a time, after any number of earlier objects",
		test: testKeysAreUnique, plain: true,
	},
	{
		name: "Data/VisibleAtCompletion",
		rule: "when a receive completes, all that the peer wrote before is in memory; a completed read has its data",
		test: testDataVisibleAtCompletion,
	},
	{
		name: "Data/VisibleElsewhere",
		rule: "a thread that polls while another one posts finds the data of a message with its completion",
		test: testDataVisibleOnOtherThread, plain: true,
	},
	{
		name: "Data/AtomicsTogether",
		rule: "additions to one word by threads with several queue pairs are all counted, and each returns another value",
		test: testConcurrentAtomics, plain: true,
	},
	{
		name: "Data/NothingAfterDestroy",
		rule: "when Destroy of a queue pair, or its Modify to RESET, has returned, no memory of its requests is read or written",
		test: testNoWriteAfterDestroy,
	},
	{
		name: "Data/DeregUnderTraffic",
		rule: "when Dereg has returned, nothing is written through the key, also while the peer goes on writing",
		test: testNoWriteAfterDereg,
	},
}

func testLocalKeyRights(e *testEnv) {
	pd, other := e.newPD(), e.newPD()
	write := e.newBuffer(pd, 64, ib.AccessLocalWrite)
	plain := e.newBuffer(pd, 64, 0)
	alien := e.newBuffer(other, 64, ib.AccessLocalWrite)

	// lacks fails the test unless the operation has failed and has not changed the memory.
	lacks := func(what string, b *registeredBuffer, wc ib.WC, want ib.WCStatus) {
		e.Helper()
		if wc.Status != want {
			e.Errorf("%s: completed with %q, want %q", what, wc.Status, want)
		}
		if b != nil && !isAllZero(b.b) {
			e.Errorf("%s: the memory was changed", what)
		}
	}
	sge := func(b *registeredBuffer) []ib.SGE { return b.newSGL(0, 8) }
	send := func(what string, b *registeredBuffer) {
		e.Helper()
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		p.postRecv(1, 1, 0, 8)
		n, err := p.qps[0].PostSend(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: sge(b)})
		if n == 0 {
			e.wantErrno(what, err, syscall.EINVAL)
			return
		}
		lacks(what, nil, e.waitAnyCompletion(p.cqs[0]), ib.WCLocProtErr)
	}
	receive := func(what string, b *registeredBuffer) {
		e.Helper()
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		fillPattern(p.buf[0].b[:8], 1)
		n, err := p.qps[1].PostRecv(ib.RecvWR{ID: 1, SGList: sge(b)})
		if n == 0 {
			e.wantErrno(what, err, syscall.EINVAL)
			return
		}
		p.postSend(0, 2, 8)
		lacks(what, b, e.waitAnyCompletion(p.cqs[1]), ib.WCLocProtErr)
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status == ib.WCSuccess {
			e.Errorf("%s: the sender's completion is a success", what)
		}
	}
	fetch := func(what string, op ib.WROpcode, b *registeredBuffer) {
		e.Helper()
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		fillPattern(p.buf[1].b[:8], 1)
		n, err := p.qps[0].PostSend(p.newRDMARequest(1, op, sge(b), 0))
		if n == 0 {
			if !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
				e.wantErrno(what, err, syscall.EINVAL)
			}
			return
		}
		lacks(what, b, e.waitAnyCompletion(p.cqs[0]), ib.WCLocProtErr)
	}
	send("send from a region of another domain", alien)
	receive("receive into a region of another domain", alien)
	fetch("read into a region of another domain", ib.WRRDMARead, alien)
	receive("receive into a region without the local right to write", plain)
	fetch("read into a region without the local right to write", ib.WRRDMARead, plain)
	if a, err := e.dev.QueryDevice(); err == nil && a.AtomicCap != ib.AtomicNone {
		fetch("atomic whose old value goes into a region without the local right to write", ib.WRAtomicFetchAdd, plain)
	}
	// The same with the rights.
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
	fillPattern(p.buf[0].b[:8], 2)
	if n, err := p.qps[1].PostRecv(ib.RecvWR{ID: 1, SGList: sge(write)}); n != 1 {
		e.Fatalf("post receive: %v", err)
	}
	p.postSend(0, 1, 8)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	if !bytes.Equal(write.b[:8], p.buf[0].b[:8]) {
		e.Error("receive: the data are not where they should be")
	}
	p.postRecv(1, 2, 0, 8)
	// reading needs no right
	p.postSendWR(0, ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: sge(plain)})
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 2, ib.WCSuccess)
}

func testKeyIsNotReusedAtOnce(e *testEnv) {
	pd := e.newPD()
	const rounds = 8
	dead := map[uint32]string{}
	// once creates an object with keys and destroys it.
	once := func(what string, keys []uint32, destroy func() error) {
		e.Helper()
		for _, k := range keys {
			if of, ok := dead[k]; ok && k != 0 { // 0: no key
				e.Errorf("%s has the key %#x of %s, which was deregistered", what, k, of)
			}
		}
		e.must("destroy "+what, destroy())
		for _, k := range keys {
			dead[k] = what
		}
	}
	for i := range rounds {
		b := e.newBuffer(pd, 64, allAccess)
		once(fmt.Sprintf("region %d", i), []uint32{b.mr.LKey(), b.mr.RKey()},
			func() error { e.destroy(b.mr); return e.mem.Remove(b.addr) })
		if mr, err := pd.AllocMR(1); err == nil {
			once(fmt.Sprintf("region %d for fast registration", i), []uint32{mr.LKey(), mr.RKey()}, mr.Dereg)
		}
		for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
			if mw, err := pd.AllocMW(kind); err == nil {
				once(fmt.Sprintf("window %d of type %d", i, kind), []uint32{mw.RKey()}, mw.Dealloc)
			}
		}
	}
}

const (
	// uniqueTime limits the creation of objects of each kind. Numbers of 16 bits have wrapped by then. Those of 20 bits
	// wrap within thoroughUniqueTime, which applies with thoroughSeeds.
	uniqueTime         = 100 * time.Millisecond
	thoroughUniqueTime = 4 * time.Second
	thoroughSeeds      = 100
	// mostUnique is the largest number of objects of each kind.
	mostUnique = 1<<20 + 1<<10

	numberedQP = "queue pair" // its numbers are no keys
)

// testKeysAreUnique keeps some objects, and creates and destroys others until their numbers have wrapped. Drivers may
// forget to skip the numbers that are in use.
func testKeysAreUnique(e *testEnv) {
	limit := uniqueTime
	if *modelSeeds >= thoroughSeeds {
		limit = thoroughUniqueTime
	}
	pd := e.newPD()
	cq := e.newCQ(1, nil)
	qpInit := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq,
		Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
	for _, qpInit.Type = range []ib.QPType{ib.QPTypeRC, ib.QPTypeUD, ib.QPTypeSRD} {
		if e.supportsType(qpInit.Type) {
			break
		}
	}
	b := e.newBuffer(pd, 64, allAccess)
	var keptBefore []numberedObject
	for _, kind := range []struct {
		name   string
		create func() (keys [2]uint32, destroy func() error, err error)
	}{
		{"region", func() ([2]uint32, func() error, error) {
			mr, err := pd.RegMR(ib.MRInit{Space: e.mem, Addr: b.addr, Length: 64, Access: allAccess})
			if err != nil {
				return [2]uint32{}, nil, err
			}
			return [2]uint32{mr.LKey(), mr.RKey()}, mr.Dereg, nil
		}},
		{"region for fast registration", func() ([2]uint32, func() error, error) {
			mr, err := pd.AllocMR(1)
			if err != nil {
				return [2]uint32{}, nil, err
			}
			return [2]uint32{mr.LKey(), mr.RKey()}, mr.Dereg, nil
		}},
		{"window", func() ([2]uint32, func() error, error) {
			mw, err := pd.AllocMW(ib.MWType2)
			if err != nil {
				return [2]uint32{}, nil, err
			}
			return [2]uint32{0, mw.RKey()}, mw.Dealloc, nil
		}},
		{numberedQP, func() ([2]uint32, func() error, error) {
			qp, err := pd.CreateQP(qpInit)
			if err != nil {
				return [2]uint32{}, nil, err
			}
			return [2]uint32{0, qp.Num()}, qp.Destroy, nil
		}},
	} {
		keptBefore = append(keptBefore, e.churn(kind.name, kind.create, keptBefore, limit)...)
	}
	for _, o := range keptBefore {
		e.must("destroy a "+o.name, o.destroy())
	}
}

// numberedObject is an object with keys or a number.
type numberedObject struct {
	name    string
	keys    [2]uint32 // 0: none
	destroy func() error
}

// churn creates three objects, which it returns, and then creates and destroys others for a time. Their keys must
// differ from those of the living objects.
func (e *testEnv) churn(name string, create func() ([2]uint32, func() error, error), living []numberedObject,
	limit time.Duration) (kept []numberedObject) {
	e.Helper()
	for range 3 {
		keys, destroy, err := create()
		if err != nil {
			return kept // the driver lacks such objects
		}
		kept = append(kept, numberedObject{name, keys, destroy})
	}
	living = slices.Concat(living, kept)
	begin := time.Now()
	for i := 0; i < mostUnique && (i%64 != 0 || time.Since(begin) < limit); i++ {
		keys, destroy, err := create()
		e.must("create a "+name, err)
		for _, o := range living {
			for side := range keys {
				if keys[side] != 0 && keys[side] == o.keys[side] && (name == numberedQP) == (o.name == numberedQP) {
					e.Fatalf("%s %d has the key or number %#x of a living %s", name, i, keys[side], o.name)
				}
			}
		}
		e.must("destroy the "+name, destroy())
	}
	return kept
}

// testDataVisibleAtCompletion reads the memory at once when a completion reports that the data have arrived.
func testDataVisibleAtCompletion(e *testEnv) {
	p, messages := e.newPair(pairConfig{kind: ib.QPTypeRC}), e.newPair(pairConfig{kind: ib.QPTypeRC})
	t := p.newMessageSender()
	for i := range 20 * e.cfg.load {
		const n = 12000 // several packets
		if t.write {
			fillPattern(p.buf[0].b[:n], i)
			p.postRecv(1, uint64(i), pairBufferLen-8, 8)
			p.postSendWR(0, p.newRDMARequest(1, ib.WRRDMAWrite, p.buf[0].newSGL(0, n), 0))
			p.postSend(0, 2, 8)
			e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
			if !bytes.Equal(p.buf[1].b[:n], p.buf[0].b[:n]) {
				e.Fatal("the message after an RDMA WRITE has arrived, and the data of the write have not")
			}
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
			e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
		}
		fillPattern(messages.buf[0].b[:n], i)
		messages.postRecv(1, 3, 0, n)
		messages.postSend(0, 3, n)
		e.waitOneCompletion(messages.cqs[1], 3, ib.WCSuccess)
		if !bytes.Equal(messages.buf[1].b[:n], messages.buf[0].b[:n]) {
			e.Fatal("the receive of a message has completed, and the data are not there")
		}
		e.waitOneCompletion(messages.cqs[0], 3, ib.WCSuccess)
	}
}

// testDataVisibleOnOtherThread polls on a second thread, which meets the driver's copy of a long message.
func testDataVisibleOnOtherThread(e *testEnv) {
	n := int(min(1<<20, uint64(e.connector.port.MaxMsgSize)))
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	from, to := e.newBuffer(p.pd, n, allAccess), e.newBuffer(p.pd, n, allAccess)
	// Each operation moves the data, and completes on one of the queues when they are in memory.
	type operation struct {
		wr   ib.SendWR
		recv bool // the completion is that of a receive
	}
	operations := []operation{
		{ib.SendWR{Opcode: ib.WRSend, SGList: from.newSGL(0, n)}, true},
		{ib.SendWR{Opcode: ib.WRRDMAWriteWithImm, SGList: from.newSGL(0, n), RemoteAddr: to.addr, RKey: to.mr.RKey()}, true},
		{ib.SendWR{Opcode: ib.WRRDMARead, SGList: to.newSGL(0, n), RemoteAddr: from.addr, RKey: from.mr.RKey()}, false},
	}
	operations = slices.DeleteFunc(operations, func(o operation) bool {
		return !e.supportsOperation(ib.QPTypeRC, o.wr.Opcode)
	})
	for i := range 40 * e.cfg.load {
		from.b[0], from.b[n-1] = byte(i), byte(i)
		o := operations[i%len(operations)]
		wr := o.wr
		wr.ID, wr.Flags = uint64(i), ib.SendSignaled
		cq := p.cqs[0]
		if o.recv {
			cq = p.cqs[1]
			e.mustPostRecv(p.qps[1], ib.RecvWR{ID: uint64(i), SGList: to.newSGL(0, n)})
		}
		var begun atomic.Bool
		polled := make(chan byte, 1)
		go func() {
			defer close(polled)
			wc := make([]ib.WC, 1)
			for end := time.Now().Add(e.cfg.timeout); time.Now().Before(end); runtime.Gosched() {
				begun.Store(true)
				if k, err := cq.Poll(wc); k > 0 || err != nil {
					polled <- to.b[n-1]
					return
				}
			}
		}()
		for !begun.Load() {
			runtime.Gosched()
		}
		p.postSendWR(0, wr)
		if o.recv {
			e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
		}
		last, ok := <-polled
		if !ok {
			e.Fatalf("%v %d of %d bytes: got no completion, want one", wr.Opcode, i, n)
		}
		if last != byte(i) {
			e.Fatalf("%v %d of %d bytes: it has completed, and the data are not there", wr.Opcode, i, n)
		}
	}
}

// testConcurrentAtomics adds 1 to a word on several queue pairs and threads.
func testConcurrentAtomics(e *testEnv) {
	if e.deviceAttr().AtomicCap == ib.AtomicNone {
		e.Skip("the driver has no atomics: AtomicCap is none")
	}
	const threads = 3
	pd := e.newPD()
	word := e.newBuffer(pd, 8, allAccess)
	each := 2000 * e.cfg.load
	old := make([][]uint64, threads)
	var wg sync.WaitGroup
	for t := range threads {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		wg.Go(func() {
			wr := ib.SendWR{Opcode: ib.WRAtomicFetchAdd, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8),
				RemoteAddr: word.addr, RKey: word.mr.RKey(), CompareAdd: 1}
			wc := make([]ib.WC, 1)
			for range each {
				if n, err := p.qps[0].PostSend(wr); n != 1 {
					e.Errorf("post an atomic: %v", err)
					return
				}
				for w := e.newWaitLimit(); ; {
					n, err := p.cqs[0].Poll(wc)
					if err != nil || n > 0 && wc[0].Status != ib.WCSuccess || n == 0 && w.yieldAndCheckOver() {
						e.Errorf("completion of an atomic: got %d with %q, %v, want 1 with success", n, wc[0].Status, err)
						return
					}
					if n > 0 {
						break
					}
				}
				old[t] = append(old[t], binary.NativeEndian.Uint64(p.buf[0].b))
			}
		})
	}
	wg.Wait()
	seen := make([]bool, threads*each)
	for _, list := range old {
		for _, v := range list {
			if v >= uint64(len(seen)) || seen[v] {
				e.Fatalf("atomics of %d threads: got value %d twice or out of range, want each up to %d once", threads, v,
					len(seen))
			}
			seen[v] = true
		}
	}
	if got := binary.NativeEndian.Uint64(word.b); got != uint64(threads*each) && !e.Failed() {
		e.Errorf("sum of %d additions of %d threads: got %d", threads*each, threads, got)
	}
}

func testNoWriteAfterDestroy(e *testEnv) {
	pd := e.newPD()
	ends := []struct {
		when string
		end  func(qp *ib.QP)
	}{
		{"when the queue pair had been destroyed", func(qp *ib.QP) { e.destroy(qp) }},
		{"when the queue pair was in RESET", func(qp *ib.QP) { e.connector.resetQPs(qp) }},
	}
	for round := range 4 * e.cfg.load {
		end := ends[round%len(ends)]
		// The first messages have arrived, the others may be in flight.
		arrived := round / len(ends) % (e.queueLen/2 + 1)
		requests := func(side int, op ib.WROpcode) (p *pair, ok bool) {
			p = e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
			for i := range e.queueLen / 2 {
				if op == ib.WRSend {
					p.postRecv(1, uint64(i), 512*i, 512)
				}
			}
			clear(p.buf[0].b)
			for i := range e.queueLen / 2 {
				wr := p.newRDMARequest(uint64(i), op, p.buf[0].newSGL(512*i, 512), 512*i)
				if !p.postIfSupported("RDMA", 0, wr) {
					return p, false
				}
			}
			for range arrived {
				e.waitAnyCompletion(p.cqs[side])
			}
			return p, true
		}
		p, _ := requests(1, ib.WRSend)
		end.end(p.qps[1])
		e.wantMemoryUnchanged(p.buf[1].b, end.when)
		e.destroyQPs(p)

		if p, ok := requests(0, ib.WRRDMARead); ok {
			end.end(p.qps[0])
			e.wantMemoryUnchanged(p.buf[0].b, end.when)
			e.destroyQPs(p)
		}

		p, _ = requests(0, ib.WRSend)
		end.end(p.qps[0])
		copy(p.buf[0].b, bytes.Repeat([]byte{0xee}, len(p.buf[0].b)))
		for range 3 {
			yieldBriefly()
		}
		e.destroyQPs(p)
		if bytes.IndexByte(p.buf[1].b, 0xee) >= 0 {
			e.Fatalf("memory was read %s", end.when)
		}
	}
}

// destroyQPs destroys the queue pairs of a pair that still exist.
func (e *testEnv) destroyQPs(p *pair) {
	e.Helper()
	for _, qp := range p.qps {
		if slices.ContainsFunc(e.objects, func(o ownedObject) bool { return o.what == qp }) {
			e.destroy(qp)
		}
	}
}

func testNoWriteAfterDereg(e *testEnv) {
	e.allowViolation(check.RuleInFlight)
	pd := e.newPD()
	for range 6 * e.cfg.load {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		t := p.newMessageSender()
		target := e.newBuffer(pd, pairBufferLen, allAccess)
		wr := ib.SendWR{
			Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, pairBufferLen),
			RemoteAddr: target.addr, RKey: target.mr.RKey(),
		}
		receive := ib.RecvWR{SGList: target.newSGL(0, pairBufferLen)}
		if !t.write {
			wr = t.newMessageRequest(0, pairBufferLen)
		}
		var stop atomic.Bool
		var written atomic.Int32
		var wg sync.WaitGroup
		wg.Go(func() {
			wc := make([]ib.WC, 8)
			for out := 0; !stop.Load(); runtime.Gosched() {
				if out < 4 {
					if !t.write {
						p.qps[1].PostRecv(receive)
					}
					if n, _ := p.qps[0].PostSend(wr); n == 1 {
						out++
					}
				}
				p.cqs[1].Poll(wc)
				n, _ := p.cqs[0].Poll(wc)
				out -= n
				written.Add(int32(n))
			}
		})
		func() {
			defer wg.Wait()
			defer stop.Store(true)
			e.eventually("writes", func() bool { return written.Load() > 2 })
			e.destroy(target.mr)
			e.wantMemoryUnchanged(target.b, "when its region had been deregistered")
		}()
		e.destroy(p.qps[0])
		e.destroy(p.qps[1])
	}
}
