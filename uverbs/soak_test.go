package uverbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/slot"
	"verbena/internal/states"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/uapi"
	"verbena/umem"
)

// The soak test resets, unplugs and plugs a device at every kind of moment. Meanwhile ten processes and a consumer in
// this process use more than fifty queue pairs. No call may hang, no object may remain, and every work request must
// complete exactly once.

const (
	soakProcesses = 10
	soakQPs       = 4 // per process
	soakKernelQPs = 12
	soakDepth     = 8 // send work requests per queue pair
	soakMessage   = 256
)

// soakCycles returns the number of cycles of a kind. The target soak-reset of make sets the variables.
func soakCycles(name string, short int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return short
}

type soakFixture struct {
	t     testing.TB
	core  *ib.Core
	srv   *Server
	slot  *slot.Slot
	stop  atomic.Bool
	lives atomic.Int64 // number of user contexts that have started to work
	dones atomic.Int64 // completions
	flush atomic.Int64 // flushed completions
	wg    sync.WaitGroup
}

func newSoakFixture(t testing.TB) *soakFixture {
	t.Helper()
	s := &soakFixture{t: t, core: &ib.Core{}}
	hw := rxe.NewHardware(rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Network: simnet.New(simnet.Config{}),
		Fabric: &rxe.Fabric{},
		Netdev: netdev.Interface{Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, 1}, MTU: 9000, Up: true, Running: true},
	})
	s.slot = slot.New(s.core, "rxe0", hw, func(f string, a ...any) {
		if msg := fmt.Sprintf(f, a...); !strings.Contains(msg, "waiting for the platform") {
			t.Error(msg)
		}
	})
	var err error
	s.srv, err = NewServer(s.core, ServerOptions{CompVectors: 1, Log: slog.New(slog.NewTextHandler(unexpectedLog{t},
		nil))})
	must(t, err)
	return s
}

// requestLedger counts posted and completed requests.
type requestLedger struct {
	s    *soakFixture
	who  string
	mu   sync.Mutex
	next uint64
	open map[uint64]bool // by ID; true if the device must have accepted the request
	seen map[uint64]bool // IDs of completed requests, stored for a while to find double completions
}

func newRequestLedger(s *soakFixture, who string) *requestLedger {
	return &requestLedger{s: s, who: who, open: map[uint64]bool{}, seen: map[uint64]bool{}}
}

func (l *requestLedger) addRequest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.open[l.next] = false
	return l.next
}

// dropRequest records that the work request was not posted.
func (l *requestLedger) dropRequest(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, id)
}

// confirmRequests records that the device has accepted all posted requests.
func (l *requestLedger) confirmRequests() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.open {
		l.open[id] = true
	}
}

func (l *requestLedger) recordCompletion(id uint64, ok, flushed bool) {
	l.s.dones.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.open[id]; !open {
		l.s.t.Errorf("%s: work request %d: got a second completion after %v, want one", l.who, id, l.seen[id])
	}
	delete(l.open, id)
	l.seen[id] = true
	if flushed {
		l.s.flush.Add(1)
	} else if !ok {
		l.s.t.Errorf("%s: work request %d: got a failure, want a flush or success", l.who, id)
	}
}

func (l *requestLedger) countOutstandingRequests() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// checkNoRequestOutstanding checks that no request accepted by the device is outstanding.
func (l *requestLedger) checkNoRequestOutstanding() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, taken := range l.open {
		if taken {
			l.s.t.Errorf("%s: work request %d: got no completion, want one", l.who, id)
		}
	}
}

// soakProc is a user process that runs its program repeatedly.
type soakProc struct {
	*program
	s      *soakFixture
	waits  bool // the program sleeps in its completion channel instead of polling
	data   []byte
	rnd    *rand.Rand
	zombie []func()
}

func (s *soakFixture) newProc(n int) *soakProc {
	p := &program{acct: umem.NewAccount(nil), form: byWrite}
	var err error
	p.space, err = umem.OpenProcess(os.Getpid())
	must(s.t, err)
	p.arena, err = unix.Mmap(-1, 0, arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(s.t, err)
	x := &soakProc{program: p, s: s, waits: n%2 == 1, rnd: rand.New(rand.NewPCG(uint64(n), 1))}
	x.data, err = unix.Mmap(-1, 0, 2*soakQPs*soakDepth*2*soakMessage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	must(s.t, err)
	return x
}

func (p *soakProc) run() {
	for !p.s.stop.Load() {
		if !p.runOnce() {
			time.Sleep(100 * time.Microsecond)
		}
		// Zombies remain for a while in addition to the next context.
		for len(p.zombie) > p.rnd.IntN(3) {
			p.zombie[0]()
			p.zombie = p.zombie[1:]
		}
	}
	for _, f := range p.zombie {
		f()
	}
	if n := p.acct.Pages(); n != 0 {
		p.s.t.Errorf("charged pages at the end: got %d, want 0", n)
	}
	p.space.Close()
	must(p.s.t, unix.Munmap(p.arena))
	must(p.s.t, unix.Munmap(p.data))
}

// isRemovalError reports whether the removal of the device has caused the error.
func (p *soakProc) isRemovalError(what string, err error) bool {
	if err == nil {
		return false
	}
	if !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENODEV) {
		p.s.t.Errorf("%s: %v", what, err)
	}
	return true
}

// soakContext is the state of one run of the program.
type soakContext struct {
	*soakProc
	f       *File
	mem     *queueMemory
	fds     []int
	async   int
	channel int
	cq      uint32
	cqRing  userRing
	mr      uapi.RegMRResp
	qps     []soakQP
	book    *requestLedger
}

type soakQP struct {
	handle uint32
	sq, rq userRing
	out    int // outstanding sends
}

func (m *queueMemory) userRingOf(mi uapi.MMInfo) userRing {
	m.mu.Lock()
	defer m.mu.Unlock()
	return userRing{m.regions[mi.Offset>>32-1]}
}

// runOnce runs the program once. runOnce returns false if the device was absent.
func (p *soakProc) runOnce() bool {
	x := &soakContext{soakProc: p, mem: &queueMemory{}, async: -1, book: newRequestLedger(p.s, "a process")}
	var err error
	if x.f, err = p.s.srv.Open("uverbs0", p, x.mem); p.isRemovalError("open", err) {
		return false
	}
	p.program.f = x.f
	p.program.fds = nil
	end := func() {
		x.f.Close()
		for _, fd := range x.fds {
			unix.Close(fd)
		}
	}
	ok := x.createObjects()
	x.fds = p.program.fds
	if !ok {
		end()
		return false
	}
	p.s.lives.Add(1)
	for x.postUntilRemoved() {
	}
	if p.s.stop.Load() && x.f.contextState().CanCreate() {
		for _, q := range x.qps {
			err := sendWithoutResponse(p.program, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: q.handle, QPState: uapi.QPSErr,
				AttrMask: uapi.QPAttrState})
			p.isRemovalError("modify to ERR", err)
		}
	} else {
		x.waitForFatalEvent()
	}
	x.pollAvailableCompletions()
	x.book.checkNoRequestOutstanding()
	f, fds := x.f, x.fds
	x.destroyObjects()
	p.zombie = append(p.zombie, func() {
		f.Close()
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	return true
}

// createObjects creates the objects and connects each queue pair to its neighbour.
func (x *soakContext) createObjects() bool {
	p := x.program
	ctx, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
	if x.isRemovalError("get context", err) {
		return false
	}
	x.async = int(ctx.AsyncFD)
	pd, err := sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{})
	if x.isRemovalError("alloc pd", err) {
		return false
	}
	addr := addressOf(x.data)
	x.mr, err = sendPlain[uapi.RegMRResp](p, uapi.CmdRegMR, uapi.RegMR{Start: addr, HCAVA: addr,
		Length:   uint64(len(x.data)),
		PDHandle: pd.PDHandle, AccessFlags: uapi.AccessLocalWrite})
	if x.isRemovalError("reg mr", err) {
		return false
	}
	ch, err := sendPlain[uapi.CreateCompChannelResp](p, uapi.CmdCreateCompChannel, uapi.CreateCompChannel{})
	if x.isRemovalError("create channel", err) {
		return false
	}
	x.channel = int(ch.FD)
	cq, out, err := sendPlainWith[uapi.CreateCQResp](p, uapi.CmdCreateCQ,
		uapi.CreateCQ{CQE: soakQPs * soakDepth * 4, CompChannel: int32(x.channel)}, nil, 16)
	if x.isRemovalError("create cq", err) {
		return false
	}
	x.cq = cq.CQHandle
	mi, _ := uapi.Decode[uapi.RXECreateCQResp](out)
	x.cqRing = x.mem.userRingOf(mi.MI)
	var nums []uint32
	for range soakQPs {
		qp, out, err := sendPlainWith[uapi.CreateQPResp](p, uapi.CmdCreateQP,
			uapi.CreateQP{PDHandle: pd.PDHandle, SendCQHandle: x.cq, RecvCQHandle: x.cq,
				MaxSendWR: soakDepth, MaxRecvWR: 2 * soakDepth, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uapi.QPTRC}, nil, 32)
		if x.isRemovalError("create qp", err) {
			return false
		}
		mi, _ := uapi.Decode[uapi.RXECreateQPResp](out)
		x.qps = append(x.qps, soakQP{handle: qp.QPHandle, sq: x.mem.userRingOf(mi.SQMI), rq: x.mem.userRingOf(mi.RQMI)})
		nums = append(nums, qp.QPN)
	}
	gid := ib.GIDFromAddr(netip.MustParseAddr("10.0.0.1"))
	for i := range x.qps {
		for _, m := range connectTransitions(x.qps[i].handle, nums[i^1], gid) {
			// four seconds, so that the connection does not fail on a slow machine
			m.Timeout, m.RetryCnt, m.RNRRetry = 20, 7, 7
			if x.isRemovalError("modify qp", sendWithoutResponse(p, uapi.CmdModifyQP, m)) {
				return false
			}
		}
		for range 2 * soakDepth {
			x.postRecv(i)
		}
	}
	return true
}

func (x *soakContext) sge(n int) uapi.RXESGE {
	return uapi.RXESGE{Addr: addressOf(x.data) + uint64(n*soakMessage), Length: soakMessage, LKey: x.mr.LKey}
}

func (x *soakContext) postRecv(i int) {
	id := x.book.addRequest()
	w := uapi.RXERecvWQE{WRID: id<<8 | uint64(i)<<1 | 1}
	w.DMA.NumSGE = 1
	sge := x.sge(i)
	if !x.qps[i].rq.post(uapi.AppendTo(uapi.AppendTo(nil, &w), &sge)) {
		x.book.dropRequest(id)
	}
}

// postUntilRemoved posts, rings and polls until the device is removed or the test stops.
func (x *soakContext) postUntilRemoved() bool {
	if x.s.stop.Load() {
		return false
	}
	for i := range x.qps {
		q := &x.qps[i]
		for q.out < soakDepth {
			id := x.book.addRequest()
			w := uapi.RXESendWQE{WR: uapi.RXESendWR{WRID: id<<8 | uint64(i)<<1, Opcode: uapi.WRSend,
				SendFlags: uapi.SendSignaled}}
			w.DMA.NumSGE, w.DMA.Length = 1, soakMessage
			sge := x.sge(soakQPs + i)
			if !q.sq.post(uapi.AppendTo(uapi.AppendTo(nil, &w), &sge)) {
				x.book.dropRequest(id)
				break
			}
			q.out++
		}
		if x.isRemovalError("doorbell", x.program.ringDoorbell(q.handle)) {
			return false
		}
		x.book.confirmRequests()
	}
	if x.waits {
		// Completions that arrived before the notification request are polled below, each exactly once.
		if x.isRemovalError("req notify", sendWithoutResponse(x.program, uapi.CmdReqNotifyCQ,
			uapi.ReqNotifyCQ{CQHandle: x.cq})) {
			return false
		}
		if !x.pollAvailableCompletions() {
			return false
		}
		idle := true
		for i := range x.qps {
			idle = idle && x.qps[i].out == soakDepth
		}
		if idle {
			var ev [compRecordSize]byte
			n, err := unix.Read(x.channel, ev[:])
			if err != nil || n == 0 {
				return false // the channel has ended
			}
		}
	}
	runtime.Gosched()
	return x.pollAvailableCompletions()
}

// pollAvailableCompletions polls the available completions. pollAvailableCompletions returns false if a completion was
// flushed.
func (x *soakContext) pollAvailableCompletions() bool {
	fine := true
	for {
		wc, ok := x.cqRing.poll()
		if !ok {
			return fine
		}
		i := int(wc.WRID >> 1 & 0x7f)
		flushed := wc.Status == uapi.WCWRFlushErr
		x.book.recordCompletion(wc.WRID>>8, wc.Status == uapi.WCSuccess, flushed)
		if flushed {
			fine = false
		}
		if wc.WRID&1 == 0 {
			x.qps[i].out--
		} else if !flushed {
			x.postRecv(i)
		}
	}
}

// waitForFatalEvent waits for the asynchronous event that reports the removal of the device, like a program after an
// error.
func (x *soakContext) waitForFatalEvent() {
	var last uapi.AsyncEventDesc
	var b [asyncRecordSize]byte
	for {
		n, err := unix.Read(x.async, b[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			x.s.t.Errorf("asynchronous events: %v", err)
			return
		}
		if n == 0 {
			break
		}
		last, _ = uapi.Decode[uapi.AsyncEventDesc](b[:n])
	}
	if last.EventType != uapi.EventDeviceFatal {
		x.s.t.Errorf("last event: got %v, want device fatal", last.EventType)
	}
}

// destroyObjects destroys objects, which is allowed in a zombie.
func (x *soakContext) destroyObjects() {
	if x.f.contextState() != states.ContextZombie {
		return
	}
	if _, err := sendPlain[uapi.AllocPDResp](x.program, uapi.CmdAllocPD, uapi.AllocPD{}); !errors.Is(err, syscall.EIO) {
		x.s.t.Errorf("alloc pd of a zombie: got %v, want EIO", err)
	}
	for i, q := range x.qps {
		if i%2 == 0 { // the last close destroys the remaining objects
			if _, err := sendPlain[uapi.DestroyQPResp](x.program, uapi.CmdDestroyQP,
				uapi.DestroyQP{QPHandle: q.handle}); err != nil {
				x.s.t.Errorf("destroy qp of a zombie: got %v, want nil", err)
			}
		}
	}
	x.pollAvailableCompletions()
	x.book.checkNoRequestOutstanding()
}

// soakKernel is a consumer in this process.
type soakKernel struct {
	s    *soakFixture
	pd   *ib.PD
	cq   *ib.CQ
	qps  []*ib.QP
	mr   *ib.MR
	addr uint64
	book *requestLedger
	room []atomic.Int32 // number of free entries of the send queues, by queue pair
	stop atomic.Bool
	over chan struct{}
}

func (s *soakFixture) newKernelClient() *ib.Client {
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, (1+soakKernelQPs)*soakMessage))
	must(s.t, err)
	return &ib.Client{
		Name: "soak",
		Add: func(d *ib.Device) (any, error) {
			k := &soakKernel{s: s, addr: addr, book: newRequestLedger(s, "the consumer in this process"),
				over: make(chan struct{}),
				room: make([]atomic.Int32, soakKernelQPs)}
			if err := k.createObjects(d, mem); err != nil {
				k.destroyObjects()
				return nil, err
			}
			go k.run()
			return k, nil
		},
		Remove: func(d *ib.Device, data any) {
			k := data.(*soakKernel)
			k.stop.Store(true)
			<-k.over
			k.destroyObjects()
			k.book.confirmRequests()
			k.book.checkNoRequestOutstanding()
		},
	}
}

func (k *soakKernel) createObjects(d *ib.Device, mem umem.Space) (err error) {
	if k.pd, err = d.AllocPD(); err != nil {
		return err
	}
	if k.cq, err = d.CreateCQ(ib.CQInit{Entries: soakKernelQPs * 4 * soakDepth, Handler: k.onCompletion}); err != nil {
		return err
	}
	if k.mr, err = k.pd.RegMR(ib.MRInit{Space: mem, Addr: k.addr, Length: (1 + soakKernelQPs) * soakMessage,
		Access: ib.AccessLocalWrite}); err != nil {
		return err
	}
	for range soakKernelQPs {
		qp, err := k.pd.CreateQP(ib.QPInitAttr{SendCQ: k.cq, RecvCQ: k.cq, Type: ib.QPTypeRC,
			Cap: ib.QPCap{MaxSendWR: soakDepth, MaxRecvWR: 2 * soakDepth, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err != nil {
			return err
		}
		k.qps = append(k.qps, qp)
	}
	gid, err := d.QueryGID(1, 1)
	if err != nil {
		return err
	}
	for i, qp := range k.qps {
		for _, step := range []struct {
			attr ib.QPAttr
			mask ib.QPAttrMask
		}{
			{ib.QPAttr{State: ib.QPInit, Port: 1}, ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags},
			{ib.QPAttr{State: ib.QPRTR, PathMTU: ib.MTU1024, DestQPN: k.qps[i^1].Num(), MinRNRTimer: 1,
				AH: ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1, HopLimit: 64}}},
				ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRdAtomic |
					ib.QPAttrMinRNRTimer},
			{ib.QPAttr{State: ib.QPRTS, Timeout: 20, RetryCnt: 7, RNRRetry: 7},
				ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrSQPSN | ib.QPAttrMaxRdAtomic},
		} {
			if err := qp.Modify(step.attr, step.mask|ib.QPAttrState); err != nil {
				return err
			}
		}
		for range 2 * soakDepth {
			k.postRecv(i)
		}
		k.room[i].Store(soakDepth)
	}
	_, err = k.cq.ReqNotify(ib.NotifyNextComp)
	return err
}

// sge returns the memory of one message. All queue pairs send the first message. Each queue pair receives into another
// message, because queue pairs read and write concurrently.
func (k *soakKernel) sge(place int) []ib.SGE {
	return []ib.SGE{{Addr: k.addr + uint64(place)*soakMessage, Length: soakMessage, LKey: k.mr.LKey()}}
}

func (k *soakKernel) postRecv(i int) {
	id := k.book.addRequest()
	if n, _ := k.qps[i].PostRecv(ib.RecvWR{ID: id<<8 | uint64(i)<<1 | 1, SGList: k.sge(1 + i)}); n == 0 {
		k.book.dropRequest(id)
	}
}

func (k *soakKernel) run() {
	defer close(k.over)
	for !k.stop.Load() {
		for i, qp := range k.qps {
			for k.room[i].Add(-1) >= 0 {
				id := k.book.addRequest()
				if n, _ := qp.PostSend(ib.SendWR{ID: id<<8 | uint64(i)<<1, Opcode: ib.WRSend, Flags: ib.SendSignaled,
					SGList: k.sge(0)}); n == 0 {
					k.book.dropRequest(id)
					break
				}
			}
			k.room[i].Add(1)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// onCompletion is the completion handler.
func (k *soakKernel) onCompletion(*ib.CQ) {
	for again := true; again; {
		k.drainCompletions()
		again, _ = k.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
	}
}

func (k *soakKernel) drainCompletions() {
	var wc [16]ib.WC
	for {
		n, _ := k.cq.Poll(wc[:])
		if n == 0 {
			return
		}
		for _, w := range wc[:n] {
			i, flushed := int(w.ID>>1&0x7f), w.Status == ib.WCWRFlushErr
			k.book.recordCompletion(w.ID>>8, w.Status == ib.WCSuccess, flushed)
			if w.ID&1 == 0 {
				k.room[i].Add(1)
			} else if !flushed && !k.stop.Load() {
				k.postRecv(i)
			}
		}
	}
}

func (k *soakKernel) destroyObjects() {
	for _, qp := range k.qps {
		must(k.s.t, qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	}
	// The handler may be about to post a receive. A queue pair in ERR flushes receives that it accepts (ib_drain_qp).
	for deadline := time.Now().Add(time.Minute); k.cq != nil && k.book.countOutstandingRequests() > 0 &&
		time.Now().Before(deadline); {
		k.drainCompletions()
		runtime.Gosched()
	}
	for _, qp := range k.qps {
		must(k.s.t, qp.Destroy())
	}
	if k.mr != nil {
		must(k.s.t, k.mr.Dereg())
	}
	if k.cq != nil {
		must(k.s.t, k.cq.Destroy())
	}
	if k.pd != nil {
		must(k.s.t, k.pd.Dealloc())
	}
}

// soakUntil waits without a limit, because a watchdog limits each cycle. soakUntil checks more often than
// testutil.Poll, because a cycle should start while all consumers are busy.
func soakUntil(f func() bool) {
	for !f() {
		time.Sleep(50 * time.Microsecond)
	}
}

// waitUntilBusy waits until the device has all its queue pairs and each consumer has requests in flight.
func (s *soakFixture) waitUntilBusy() {
	soakUntil(func() bool {
		d := s.slot.Device()
		return d != nil && d.Handle().Device().Objects().QP >= soakProcesses*soakQPs+soakKernelQPs
	})
	began := s.dones.Load()
	soakUntil(func() bool { return s.dones.Load() >= began+100 })
}

// runCycle executes one reset, or an unplug and a plug, at one of the moments.
func (s *soakFixture) runCycle(n int, plug bool, rnd *rand.Rand) {
	hw := s.slot.Hardware().(*rxe.Hardware)
	settled := func(resets int) { soakUntil(func() bool { return s.slot.Status().Resets >= resets }) }
	resets := s.slot.Status().Resets
	switch {
	case plug:
		if n%5 == 1 {
			hw.Hang()
		}
		must(s.t, s.slot.Unplug())
		must(s.t, s.slot.Plug())
	case n%6 == 1:
		must(s.t, s.slot.ResetAt(slot.AtWorkRequest(1+rnd.Uint64N(50)), nil))
		settled(resets + 1)
	case n%6 == 2:
		must(s.t, s.slot.ResetAt(slot.InHandler, nil))
		settled(resets + 1)
	case n%6 == 3:
		must(s.t, s.slot.ResetAt(slot.DuringRegistration, nil))
		must(s.t, s.slot.Reset(context.Background()))
	case n%6 == 4:
		hw.Disconnect()
		time.AfterFunc(time.Duration(rnd.IntN(1000))*time.Microsecond, hw.Return)
		must(s.t, s.slot.Reset(context.Background()))
	case n%6 == 5:
		hw.Hang()
		fallthrough
	default:
		must(s.t, s.slot.Reset(context.Background()))
	}
}

func TestSoakReset(t *testing.T) {
	resets, plugs := 24, 10
	if testing.Short() {
		resets, plugs = 6, 4
	}
	resets, plugs = soakCycles("SOAK_RESETS", resets), soakCycles("SOAK_PLUGS", plugs)
	checkNoDescriptorLeak(t)
	s := newSoakFixture(t)
	client := s.newKernelClient()
	must(t, s.core.RegisterClient(client))
	must(t, s.slot.Plug())
	for n := range soakProcesses {
		p := s.newProc(n)
		s.wg.Go(p.run)
	}
	rnd := rand.New(rand.NewPCG(uint64(resets), uint64(plugs)))
	var recoveries []time.Duration
	began := time.Now()
	left := [2]int{resets, plugs}
	limit, err := time.ParseDuration(os.Getenv("SOAK_TIME"))
	if err != nil {
		limit = 1 << 62
	}
	for n := 0; left[0]+left[1] > 0 && !t.Failed() && time.Since(began) < limit; n++ {
		watchdog := time.AfterFunc(5*time.Minute, func() {
			buf := make([]byte, 1<<22)
			panic(fmt.Sprintf("cycle %d hangs:\n%s", n, buf[:runtime.Stack(buf, true)]))
		})
		s.waitUntilBusy()
		testutil.PauseRandomly(rnd, 500*time.Microsecond)
		kind := 0
		if rnd.IntN(left[0]+left[1]) >= left[0] {
			kind = 1
		}
		left[kind]--
		s.runCycle(left[kind], kind == 1, rnd)
		if kind == 0 {
			recoveries = append(recoveries, s.slot.Status().Recovery)
		}
		watchdog.Stop()
		if (n+1)%500 == 0 {
			t.Logf("%d cycles in %v: %d contexts started, %d completions, %d of them flushed", n+1,
				time.Since(began).Round(time.Second), s.lives.Load(), s.dones.Load(), s.flush.Load())
		}
	}
	if !t.Failed() {
		s.waitUntilBusy()
	}
	s.stop.Store(true)
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Second):
		// Programs that sleep until a completion must wake when the device is removed.
		must(t, s.slot.Unplug())
		<-done
	}
	if err := s.slot.Close(); err != nil {
		t.Error(err)
	}
	s.core.UnregisterClient(client)
	if got := s.srv.Resources(); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
	s.srv.Close()
	slices.Sort(recoveries)
	if n := len(recoveries); n > 0 {
		t.Logf("%d resets, %d unplugs: %d contexts started, %d completions, %d of them flushed; time from the fatal event "+
			"to the new device: median %v, p99 %v, maximum %v",
			resets-left[0], plugs-left[1], s.lives.Load(), s.dones.Load(), s.flush.Load(), recoveries[n/2], recoveries[n*99/100],
			recoveries[n-1])
	}
}

// unexpectedLog is the output of a logger that must log nothing.
type unexpectedLog struct{ t testing.TB }

func (f unexpectedLog) Write(line []byte) (int, error) {
	f.t.Errorf("log: got %s, want no lines", line)
	return len(line), nil
}
