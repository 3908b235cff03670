package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
)

// Refused: a rejected call must change nothing.

var rejectedCallChecks = []ruleTest{
	{
		name: "Errors/RefusedLeavesNothing",
		rule: "what is refused leaves nothing behind, however often it is asked for: no object, no goroutine, no memory",
		test: testRejectedCallLeavesNoObject, plain: true, alone: true,
	},
	{
		name: "Data/ReregRefused",
		rule: "after a Rereg that is refused, the region has the memory, the rights and the domain that it had",
		test: testRejectedReregChangesNothing,
	},
}

// creationCall is a call that may create an object.
type creationCall struct {
	what string
	call func() (destroy func() error, err error)
}

// rejectedCreations returns calls that reach the driver and have exactly one fault.
func rejectedCreations(e *testEnv, pd *ib.PD, cq *ib.CQ) (all []creationCall) {
	e.Helper()
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	qp := func(what string, kind ib.QPType, change func(c *ib.QPInitAttr)) {
		all = append(all, creationCall{"create QP, " + what, func() (func() error, error) {
			init := ib.QPInitAttr{
				SendCQ: cq, RecvCQ: cq, Type: kind, Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
			}
			change(&init)
			qp, err := pd.CreateQP(init)
			if err != nil {
				return nil, err
			}
			return qp.Destroy, nil
		}})
	}
	for _, kind := range append(queuePairTypes, ib.QPTypeSRD) {
		if e.newQPOfType(kind, pd, cq) == nil {
			continue
		}
		t := kind.String()
		qp(t+" with too many send work requests", kind, func(i *ib.QPInitAttr) { i.Cap.MaxSendWR = uint32(a.MaxQPWR) + 1 })
		qp(t+" with too many receive work requests", kind, func(i *ib.QPInitAttr) { i.Cap.MaxRecvWR = uint32(a.MaxQPWR) + 1 })
		qp(t+" with too many gather elements", kind, func(i *ib.QPInitAttr) { i.Cap.MaxSendSGE = uint32(a.MaxSendSGE) + 1 })
		qp(t+" with too many scatter elements", kind, func(i *ib.QPInitAttr) { i.Cap.MaxRecvSGE = uint32(a.MaxRecvSGE) + 1 })
		qp(t+" with too many bytes inline", kind, func(i *ib.QPInitAttr) { i.Cap.MaxInlineData = 1 << 30 })
	}
	qp("of no known type", ib.QPType(200), func(*ib.QPInitAttr) {})
	all = append(all, creationCall{"create CQ of too many entries", func() (func() error, error) {
		cq, err := e.dev.CreateCQ(ib.CQInit{Entries: a.MaxCQE + 1})
		if err != nil {
			return nil, err
		}
		return cq.Destroy, nil
	}})
	for _, attr := range []ib.SRQAttr{{MaxWR: uint32(a.MaxSRQWR) + 1, MaxSGE: 1},
		{MaxWR: 1, MaxSGE: uint32(a.MaxSRQSGE) + 1}} {
		all = append(all, creationCall{fmt.Sprintf("create SRQ of %d work requests of %d elements", attr.MaxWR, attr.MaxSGE),
			func() (func() error, error) {
				srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: attr})
				if err != nil {
					return nil, err
				}
				return srq.Destroy, nil
			}})
	}
	_, addr := e.newMemory(64)
	for _, access := range rejectedAccessFlags(e, pd) {
		all = append(all, creationCall{fmt.Sprintf("register memory with rights %v", access), func() (func() error, error) {
			mr, err := pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr, Length: 64, Access: access})
			if err != nil {
				return nil, err
			}
			return mr.Dereg, nil
		}})
	}
	bad := []ib.AHAttr{e.connector.ownAddress(), e.connector.ownAddress()}
	bad[0].Port, bad[1].GRH.SGIDIndex = uint8(a.PhysPorts)+1, 255
	for _, at := range bad {
		all = append(all, creationCall{fmt.Sprintf("create AH of port %d and GID %d", at.Port, at.GRH.SGIDIndex),
			func() (func() error, error) {
				ah, err := pd.CreateAH(&at)
				if err != nil {
					return nil, err
				}
				return ah.Destroy, nil
			}})
	}
	return append(all, rejectedObjectCalls(e, pd, cq)...)
}

// rejectedObjectCalls returns calls on existing objects.
func rejectedObjectCalls(e *testEnv, pd *ib.PD, cq *ib.CQ) (all []creationCall) {
	e.Helper()
	add := func(what string, call func() error) {
		all = append(all, creationCall{what, func() (func() error, error) { return func() error { return nil }, call() }})
	}
	sgl := e.newBuffer(pd, 64, ib.AccessLocalWrite).newSGL(0, 8)
	for _, kind := range queuePairTypes {
		if e.newQPOfType(kind, pd, cq) == nil {
			continue
		}
		qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: kind,
			Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
		c := qp.Init().Cap
		post := func(qp *ib.QP, what string, wr ib.SendWR) {
			add(fmt.Sprintf("%v: post send, %s", kind, what), func() error {
				_, err := qp.PostSend(wr)
				return err
			})
		}
		post(qp, "in RESET", ib.SendWR{Opcode: ib.WRSend, SGList: sgl})
		add(fmt.Sprintf("%v: modify to RTS", kind), func() error {
			return qp.Modify(ib.QPAttr{State: ib.QPRTS},
				ib.QPAttrState)
		})
		add(fmt.Sprintf("%v: modify without attributes", kind),
			func() error { return qp.Modify(ib.QPAttr{State: ib.QPInit}, ib.QPAttrState) })
		up := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: kind, Cap: c})
		e.connector.moveQPUpTo(up, up.Num(), ib.QPRTS)
		post(up, "of no known opcode", ib.SendWR{Opcode: 0x77, SGList: sgl})
		post(up, "of too many elements", ib.SendWR{Opcode: ib.WRSend, SGList: slices.Repeat(sgl, int(c.MaxSendSGE)+1)})
		post(up, "of too many bytes inline", ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline,
			Inline: make([]byte, c.MaxInlineData+1)})
		post(up, "of a region that is not named", ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{}})
		post(up, "of a window that is not named", ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{}})
		add(fmt.Sprintf("%v: post receive of too many elements", kind), func() error {
			_, err := up.PostRecv(ib.RecvWR{SGList: slices.Repeat(sgl, int(c.MaxRecvSGE)+1)})
			return err
		})
		add(fmt.Sprintf("%v: modify RTS to INIT", kind), func() error {
			return up.Modify(e.connector.newQPAttr(ib.QPInit, up.Num()),
				transitionMask(kind, ib.QPInit))
		})
	}
	small := e.newCQ(1, nil)
	add("resize CQ to nothing", func() error { return small.Resize(0) })
	add("resize CQ to too many entries", func() error { return small.Resize(e.limits.MaxCQE + 1) })
	return all
}

// rejectedAccessFlags returns sets of access rights, each consistent, that the driver rejects for regions.
func rejectedAccessFlags(e *testEnv, pd *ib.PD) (refused []ib.AccessFlags) {
	e.Helper()
	_, addr := e.newMemory(64)
	for _, more := range []ib.AccessFlags{ib.AccessFlushPersistent, ib.AccessFlushGlobal, ib.AccessMWBind,
		ib.AccessRemoteAtomic, 1 << 18} {
		access := ib.AccessLocalWrite | more
		mr, err := pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr, Length: 64, Access: access})
		if err != nil {
			refused = append(refused, access)
			continue
		}
		e.must("deregister memory", mr.Dereg())
	}
	return refused
}

// validCreations returns calls that create one object of each kind.
func validCreations(e *testEnv, pd *ib.PD, cq *ib.CQ) (all []creationCall) {
	e.Helper()
	add := func(what string, call func() (interface{ Destroy() error }, error)) {
		all = append(all, creationCall{what, func() (func() error, error) {
			o, err := call()
			if err != nil {
				return nil, err
			}
			return o.Destroy, nil
		}})
	}
	for _, kind := range append(queuePairTypes, ib.QPTypeSRD) {
		add(fmt.Sprintf("create %v QP", kind), func() (interface{ Destroy() error }, error) {
			return pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: kind,
				Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
		})
	}
	add("create AH", func() (interface{ Destroy() error }, error) {
		at := e.connector.ownAddress()
		return pd.CreateAH(&at)
	})
	add("create SRQ", func() (interface{ Destroy() error }, error) {
		return pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
	})
	add("create CQ", func() (interface{ Destroy() error }, error) { return e.dev.CreateCQ(ib.CQInit{Entries: 1}) })
	_, addr := e.newMemory(64)
	return append(all, creationCall{"register memory", func() (func() error, error) {
		mr, err := pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr, Length: 64, Access: ib.AccessLocalWrite})
		if err != nil {
			return nil, err
		}
		return mr.Dereg, nil
	}})
}

const (
	// quick is the time for which a rejected call is repeated in a round, beyond the number that the device's limits
	// require.
	quick = 2 * time.Millisecond
	// slow is the time limit for a slow device in a round.
	slow = 50 * time.Millisecond
	// leastAsked is the number of rejected calls from which a leak of one object per call is visible.
	leastAsked = 100
)

// testRejectedCallLeavesNoObject repeats calls beyond the capacity of the device, if it reaches that soon, and up to
// 10,000 times if they are fast. It watches the objects of the device, and the memory and the goroutines of the
// process (leakSearch).
func testRejectedCallLeavesNoObject(e *testEnv) {
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	times := rejectionCount
	most := 4000 * e.cfg.load * e.cfg.load * e.cfg.load // 108,000 with a load of 3: past 65,536
	for _, limit := range []int{a.MaxQP, a.MaxCQ, a.MaxSRQ, a.MaxMR, a.MaxAH} {
		if limit < most {
			times = max(times, limit+1)
		}
	}
	pd, cq := e.newPD(), e.newCQ(8, nil)
	var possible []creationCall
	for _, c := range validCreations(e, pd, cq) {
		if destroy, err := c.call(); err == nil {
			e.must("destroy it", destroy())
			possible = append(possible, c)
		}
	}
	var refused []creationCall
	for _, r := range rejectedCreations(e, pd, cq) {
		if destroy, err := r.call(); err != nil {
			refused = append(refused, r)
		} else {
			e.Logf("%s: not refused", r.what)
			e.must("destroy it", destroy())
		}
	}
	objects := e.dev.Objects()
	l := leakSearch{e: e}
	l.findLeaks(times, refused)
	if now := e.dev.Objects(); now != objects {
		e.Errorf("objects of the device: %v, and %v before all was refused", now, objects)
	}
	for _, c := range possible {
		destroy, err := c.call()
		if err != nil {
			e.Fatalf("%s, after %d refused calls of each kind: %v", c.what, times, err)
		}
		e.must("destroy it", destroy())
	}
	e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd}).exchangeMessage(0, 1, 8)
}

// leakSearch searches for rejected calls that leave something behind.
type leakSearch struct {
	e    *testEnv
	last int // index of the call at which the last round ended
}

// processUse counts the elements that rejected calls may leave behind: goroutines, objects in memory, and their bytes.
type processUse [3]int

// leaks describes the elements of a processUse. A growth by some is a leak after any number of calls, because nothing
// else in the process grows by so much. A leak of one element per call is visible after leastAsked calls.
var leaks = [len(processUse{})]struct {
	what string
	some int
}{
	{"a goroutine stays each time", 1000},
	{"what it has made stays in memory each time", 1 << 20},
	{"what it has made stays in memory", 32 << 20},
}

// newProcessUse collects garbage, and counts the live objects, including those created since the collection.
func newProcessUse() processUse {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return processUse{runtime.NumGoroutine(), int(m.HeapObjects), int(m.HeapAlloc)}
}

// growth returns by how much u exceeds start.
func (u processUse) growth(start processUse) (n processUse) {
	for i := range u {
		n[i] = u[i] - start[i]
	}
	return n
}

// systemTime returns the time of the system's clock. In a bubble of package testing/synctest, time.Now returns virtual
// time, which does not advance during calls.
func systemTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// growthDuring returns by how much the rest of the process grows in a period of the system's clock.
func growthDuring(period time.Duration) processUse {
	start := newProcessUse()
	for began := systemTime(); systemTime()-began < period; {
		rest := unix.NsecToTimespec(int64(time.Millisecond))
		_ = unix.Nanosleep(&rest, nil)
	}
	least := newProcessUse().growth(start)
	for range 3 {
		for i, n := range newProcessUse().growth(start) {
			least[i] = min(least[i], n)
		}
	}
	return least
}

// isLeakAfterAnyCalls reports whether the growth u is a leak after any number of calls.
func (u processUse) isLeakAfterAnyCalls() bool {
	for i, l := range leaks {
		if u[i] >= l.some {
			return true
		}
	}
	return false
}

// heapBytes returns the bytes of the heap's objects, including garbage. It is cheaper than newProcessUse.
func heapBytes() int {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int(s[0].Value.Uint64())
}

// findLeaks fails the test for the first call that leaves something behind. It makes each call times times, unless the
// device is slow, and looks for the call only if something has grown.
func (l *leakSearch) findLeaks(times int, rejected []creationCall) {
	l.e.Helper()
	if _, grow := l.repeatCalls(3, times, rejected...); grow == ([len(leaks)]bool{}) {
		return
	}
	for _, r := range slices.Concat(rejected[l.last:], rejected[:l.last]) { // the last call is the most likely one
		n, grow := l.repeatCalls(4, leastAsked, r)
		for range 2 { // other tests of the process may have grown
			if grow != ([len(leaks)]bool{}) {
				began := systemTime()
				more, again := l.repeatCalls(1, leastAsked, r)
				others := growthDuring(systemTime() - began)
				n += more
				for i := range grow {
					quiet := others[i] < leaks[i].some/4 && (i == 2 || others[i] < more/4)
					grow[i] = grow[i] && again[i] && quiet
				}
			}
		}
		for i, some := range grow {
			if some {
				l.e.Fatalf("%s: refused %d times, and %s", r.what, n, leaks[i].what)
			}
		}
	}
}

// repeatCalls makes rejected calls in several rounds. It returns the number of repetitions of each call, and the
// elements that have grown in each round: by about one for each call, or by more than other activity causes. Other
// activity also creates objects, but does not keep them.
func (l *leakSearch) repeatCalls(rounds, times int, rejected ...creationCall) (asked int, grow [len(leaks)]bool) {
	l.e.Helper()
	start := newProcessUse()
	for range 5 {
		for i, n := range newProcessUse() {
			start[i] = min(start[i], n)
		}
	}
	for i := range grow {
		grow[i] = true
	}
	for range rounds {
		n, ended := l.repeatRound(start, times, rejected)
		asked += n
		for range 6 {
			for i, g := range newProcessUse().growth(start) {
				each := i < 2 && asked >= leastAsked && g >= asked*3/4 // else the objects are created elsewhere
				grow[i] = grow[i] && (each || g >= leaks[i].some)
			}
			if !slices.Contains(grow[:], true) {
				return asked, grow
			}
		}
		if ended {
			break
		}
	}
	return asked, grow
}

// repeatRound repeats each call, and returns the least number of repetitions. It ends early if the process has grown so
// much since start that more calls would show nothing else.
func (l *leakSearch) repeatRound(start processUse, times int, rejected []creationCall) (least int, ended bool) {
	e := l.e
	e.Helper()
	for i, r := range rejected {
		l.last = i
		n, began := 0, time.Now()
		more := func() bool {
			took := time.Since(began)
			return n < leastAsked && took < time.Second || // the machine is busy
				n < times && took < slow*time.Duration(e.cfg.load*e.cfg.load) || times > leastAsked && n < 10_000 &&
				took < quick*time.Duration(e.cfg.load)
		}
		for ; more() && !ended; n++ {
			if _, err := r.call(); err == nil {
				e.Fatalf("%s: was refused, and then was not", r.what)
			}
			if n == 7 || n%64 == 63 {
				ended = runtime.NumGoroutine() >= start[0]+leaks[0].some ||
					heapBytes() >= start[2]+2*leaks[2].some && newProcessUse().growth(start).isLeakAfterAnyCalls()
			}
		}
		if i == 0 || n < least {
			least = n
		}
		if ended {
			break
		}
	}
	return least, ended
}

// regionProbe holds the expected state of a region. RDMA by a pair of the region's domain must reach its memory, and no
// other access may.
type regionProbe struct {
	e     *testEnv
	p     *pair
	other *pair // a pair of another domain
	b     *registeredBuffer
	fresh *registeredBuffer // memory of a rejected change
	seed  int
}

func (r *regionProbe) checkRegionUnchanged(after string) {
	e := r.e
	e.Helper()
	p, b := r.p, r.b
	r.seed++
	fillPattern(p.buf[0].b[:8], r.seed)
	clear(b.b)
	clear(r.fresh.b)
	key, at := b.mr.RKey(), b.addr+8
	wr := func(op ib.WROpcode, of *pair) ib.SendWR {
		return ib.SendWR{Opcode: op, SGList: of.buf[0].newSGL(0, 8), RemoteAddr: at, RKey: key}
	}
	p.wantPostStatus(after+": write by a queue pair of its domain", wr(ib.WRRDMAWrite, p), ib.WCSuccess)
	if !bytes.Equal(b.b[8:16], p.buf[0].b[:8]) || !isAllZero(r.fresh.b) {
		e.Fatalf("%s: the data of a write are not where they should be", after)
	}
	p.wantPostStatus(after+": read, for which it has no right", wr(ib.WRRDMARead, p), ib.WCRemAccessErr)
	r.other.wantPostStatus(after+": write by a queue pair of another domain", wr(ib.WRRDMAWrite, r.other),
		ib.WCRemAccessErr)
	// The local key, with a SEND of the region to itself.
	for _, of := range []*pair{p, r.other} {
		want := ib.WCSuccess
		if of != p {
			want = ib.WCLocProtErr
		}
		of.postRecv(1, 1, 64, 8)
		if got := of.postAndWait(ib.SendWR{Opcode: ib.WRSend, SGList: b.newSGL(8, 8)}); got != want {
			e.Fatalf("%s: send from it: got %q, want %q", after, got, want)
		}
		if want == ib.WCSuccess {
			e.waitOneCompletion(of.cqs[1], 1, ib.WCSuccess)
		} else {
			of.reconnect()
		}
	}
	if b.mr.PD() != p.pd {
		e.Errorf("%s: its domain is another one", after)
	}
}

// testRejectedReregChangesNothing requests several changes of which one is invalid. A driver may detect it after it has
// made the others.
func testRejectedReregChangesNothing(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.requireRDMAWrite()
	const access = ib.AccessLocalWrite | ib.AccessRemoteWrite
	b := e.newBuffer(p.pd, 64, access)
	e.requireFeature("reregistration", b.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: access}))
	r := &regionProbe{e: e, p: p, other: e.newPair(pairConfig{kind: ib.QPTypeRC}), b: b, fresh: e.newBuffer(p.pd, 64,
		access)}
	r.checkRegionUnchanged("at first")
	to := ib.MRChange{PD: r.other.pd, Space: e.mem, Addr: r.fresh.addr, Length: 64, IOVA: b.addr}
	const all = ib.MRChangePD | ib.MRChangeAccess | ib.MRChangeTranslation
	tested := false
	for _, bad := range rejectedAccessFlags(e, p.pd) {
		for _, flags := range []ib.MRChangeFlags{ib.MRChangeAccess, ib.MRChangeAccess | ib.MRChangePD,
			ib.MRChangeAccess | ib.MRChangeTranslation, all} {
			to.Access = bad | ib.AccessRemoteRead
			if err := b.mr.Rereg(flags, to); err == nil {
				e.Fatalf("Rereg, changes %#x, to rights %v, which RegMR refuses: was done", flags, to.Access)
			}
			r.checkRegionUnchanged(fmt.Sprintf("after a Rereg, changes %#x, to rights %v, that was refused", flags, to.Access))
			tested = true
		}
	}
	// The rejected call must not use the domain.
	to.PD, to.Access = e.newPD(), ib.AccessLocalWrite
	for _, bad := range rejectedAccessFlags(e, p.pd) {
		to.Access = bad
		b.mr.Rereg(all, to)
	}
	e.destroy(to.PD)
	bindable := e.newBuffer(p.pd, 64, access|ib.AccessMWBind)
	mw, err := p.pd.AllocMW(ib.MWType1)
	switch {
	case err == nil:
		destroyAtEnd(e, mw, mw.Dealloc)
		p.bindAndWait(ib.BindMW{
			MW: mw, MR: bindable.mr, RKey: ib.IncRKey(mw.RKey()), Addr: bindable.addr, Length: 8, Access: ib.AccessRemoteWrite,
		}, ib.WCSuccess)
		r.b = bindable
		to.PD, to.Access = r.other.pd, access|ib.AccessRemoteRead
		for _, flags := range []ib.MRChangeFlags{ib.MRChangeAccess, ib.MRChangePD, ib.MRChangeTranslation, all} {
			e.wantErrno("Rereg of a region with a window", bindable.mr.Rereg(flags, to), syscall.EBUSY, syscall.EINVAL)
			r.checkRegionUnchanged(fmt.Sprintf("after a Rereg, changes %#x, of a region with a window", flags))
			tested = true
		}
		e.destroy(mw)
	case !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS):
		e.Errorf("alloc mw: %v", err)
	}
	if !tested {
		e.Skip("the driver refuses no access rights, and has no memory windows")
	}
}
