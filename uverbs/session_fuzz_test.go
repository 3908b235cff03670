package uverbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/roce"
	"verbena/uapi"
	"verbena/umem"
)

// This fuzzer uses the structure of commands. A program runs whole sessions on a real rxe device, with mostly valid
// commands. Some commands are damaged, and the shared queues are overwritten. A bystander is another process on the
// same device. The program can use the numbers of the bystander's objects. After each session no object of the program
// may remain, and the bystander must be unaffected.

// lockedSpace is a flatSpace outside the Go heap that the device, its timers and the program may use concurrently.
type lockedSpace struct {
	mu sync.Mutex
	flatSpace
}

func newLockedSpace(t testing.TB, size int) *lockedSpace {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	return &lockedSpace{flatSpace: flatSpace{fuzzBase, mem}}
}

func (s *lockedSpace) ReadV(dst [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flatSpace.ReadV(dst, addr)
}

func (s *lockedSpace) WriteV(src [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flatSpace.WriteV(src, addr)
}

func (s *lockedSpace) writeMem(addr uint64, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(s.mem[addr-s.base:], b)
}

func (s *lockedSpace) readMem(addr uint64, n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.mem[addr-s.base:][:n])
}

// queueMemory is a Memory with regions that a program can overwrite.
type queueMemory struct {
	mu      sync.Mutex
	regions [][]byte
	bytes   int
}

// queueLimit limits the allocations of one session, which keeps the session short.
const queueLimit = 4 << 20

func (m *queueMemory) Alloc(size int) (ib.Shared, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bytes+size > queueLimit {
		return ib.Shared{}, syscall.ENOMEM
	}
	b, err := unix.Mmap(-1, 0, (size+4095)&^4095, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return ib.Shared{}, err
	}
	m.bytes += size
	m.regions = append(m.regions, b)
	return ib.Shared{Mem: b, Offset: uint64(len(m.regions)) << 32, Free: func() {}}, nil
}

func (m *queueMemory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.regions {
		if err := unix.Munmap(b); err != nil {
			return err
		}
	}
	m.regions = nil
	return nil
}

// sessionProgram is a process that runs a session.
type sessionProgram struct {
	fuzzProgram
	space  *lockedSpace
	mem    *queueMemory
	file   *File
	ledger *quota.Ledger

	handles  [numPools][]uint32
	qpns     []uint32
	keys     []uint32
	channels []int
}

func (p *sessionProgram) Space() umem.Space { return p.space }

// The next constants divide the program's memory into its data, its commands and their responses.
const (
	sessionMemory   = 0x10000
	sessionData     = fuzzBase
	sessionCommand  = fuzzBase + 0x8000
	sessionResponse = fuzzBase + 0xc000
)

// numberKind is a kind of number in commands.
type numberKind int

const (
	poolNone numberKind = iota
	poolPD
	poolMR
	poolCQ
	poolQP
	poolAH
	poolSRQ
	poolMW
	poolXRCD
	poolChannel
	numPools
)

// sessionCommandKind is a command used in sessions.
type sessionCommandKind struct {
	number   uint32
	extended bool
	req      any        // the type of the request
	resp     int        // buffer size for the core's response
	makes    numberKind // kind of the number in the response
	driver   int        // buffer size for the driver's response
}

var sessionCommands = []sessionCommandKind{
	{number: uint32(uapi.CmdGetContext), req: uapi.GetContext{}, resp: uapi.SizeOf[uapi.GetContextResp]()},
	{number: uint32(uapi.CmdQueryDevice), req: uapi.QueryDevice{}, resp: uapi.SizeOf[uapi.QueryDeviceResp]()},
	{number: uint32(uapi.CmdQueryPort), req: uapi.QueryPort{}, resp: uapi.SizeOf[uapi.QueryPortResp]()},
	{number: uint32(uapi.CmdAllocPD), req: uapi.AllocPD{}, resp: 4, makes: poolPD},
	{number: uint32(uapi.CmdDeallocPD), req: uapi.DeallocPD{}},
	{number: uint32(uapi.CmdCreateAH), req: uapi.CreateAH{}, resp: 4, makes: poolAH, driver: 4},
	{number: uint32(uapi.CmdDestroyAH), req: uapi.DestroyAH{}},
	{number: uint32(uapi.CmdRegMR), req: uapi.RegMR{}, resp: 12, makes: poolMR},
	{number: uint32(uapi.CmdReregMR), req: uapi.ReregMR{}, resp: 8},
	{number: uint32(uapi.CmdDeregMR), req: uapi.DeregMR{}},
	{number: uint32(uapi.CmdAllocMW), req: uapi.AllocMW{}, resp: 8, makes: poolMW},
	{number: uint32(uapi.CmdDeallocMW), req: uapi.DeallocMW{}},
	{number: uint32(uapi.CmdCreateCompChannel), req: uapi.CreateCompChannel{}, resp: 4, makes: poolChannel},
	{number: uint32(uapi.CmdCreateCQ), req: uapi.CreateCQ{}, resp: 8, makes: poolCQ, driver: 16},
	{number: uint32(uapi.CmdResizeCQ), req: uapi.ResizeCQ{}, resp: 8, driver: 16},
	{number: uint32(uapi.CmdDestroyCQ), req: uapi.DestroyCQ{}, resp: 8},
	{number: uint32(uapi.CmdPollCQ), req: uapi.PollCQ{}, resp: 8 + 16*48},
	{number: uint32(uapi.CmdReqNotifyCQ), req: uapi.ReqNotifyCQ{}},
	{number: uint32(uapi.CmdCreateQP), req: uapi.CreateQP{}, resp: 32, makes: poolQP, driver: 32},
	{number: uint32(uapi.CmdQueryQP), req: uapi.QueryQP{}, resp: uapi.SizeOf[uapi.QueryQPResp]()},
	{number: uint32(uapi.CmdModifyQP), req: uapi.ModifyQP{}},
	{number: uint32(uapi.CmdDestroyQP), req: uapi.DestroyQP{}, resp: 4},
	{number: uint32(uapi.CmdAttachMcast), req: uapi.AttachMcast{}},
	{number: uint32(uapi.CmdDetachMcast), req: uapi.DetachMcast{}},
	{number: uint32(uapi.CmdCreateSRQ), req: uapi.CreateSRQ{}, resp: 16, makes: poolSRQ, driver: 20},
	{number: uint32(uapi.CmdModifySRQ), req: uapi.ModifySRQ{}, driver: 16},
	{number: uint32(uapi.CmdQuerySRQ), req: uapi.QuerySRQ{}, resp: 16},
	{number: uint32(uapi.CmdDestroySRQ), req: uapi.DestroySRQ{}, resp: 4},
	{number: uint32(uapi.CmdOpenXRCD), req: uapi.OpenXRCD{}, resp: 4, makes: poolXRCD},
	{number: uint32(uapi.CmdCloseXRCD), req: uapi.CloseXRCD{}},
	{number: uint32(uapi.CmdCreateXSRQ), req: uapi.CreateXSRQ{}, resp: 16, makes: poolSRQ, driver: 20},
	{number: uint32(uapi.CmdOpenQP), req: uapi.OpenQP{}, resp: 32, makes: poolQP},
	{number: uint32(uapi.ExCmdQueryDevice), extended: true, req: uapi.ExQueryDevice{},
		resp: uapi.SizeOf[uapi.ExQueryDeviceResp]()},
	{number: uint32(uapi.ExCmdCreateCQ), extended: true, req: uapi.ExCreateCQ{}, resp: 16, makes: poolCQ, driver: 16},
	{number: uint32(uapi.ExCmdCreateQP), extended: true, req: uapi.ExCreateQP{}, resp: 40, makes: poolQP, driver: 32},
	{number: uint32(uapi.ExCmdModifyQP), extended: true, req: uapi.ExModifyQP{}, resp: 8},
	{number: uint32(uapi.ExCmdModifyCQ), extended: true, req: uapi.ExModifyCQ{}},
}

// sessionFixture is the state that all sessions of a process share.
type sessionFixture struct {
	dev   *ib.Device
	srv   *Server
	gid   ib.GID
	other *bystander
	base  string // dev.Objects() when there is no session
	round int
}

func newSessionFixture(t testing.TB) *sessionFixture {
	t.Helper()
	addr := netip.MustParseAddr("10.0.0.1")
	dev, err := rxe.New(rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{addr}, Network: simnet.New(simnet.Config{}), Fabric: &rxe.Fabric{},
		Rand:   rand.New(rand.NewPCG(1, 2)),
		Netdev: netdev.Interface{Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, 1}, MTU: 9000, Up: true, Running: true},
	})
	must(t, err)
	core := &ib.Core{}
	must(t, core.Register(dev.Handle()))
	srv, err := NewServer(core, ServerOptions{CompVectors: 1})
	must(t, err)
	gid, err := dev.IB().QueryGID(1, 1)
	must(t, err)
	w := &sessionFixture{dev: dev.IB(), srv: srv, gid: gid.GID}
	w.other = newBystander(t, w)
	w.base = w.dev.Objects().String()
	t.Cleanup(func() {
		w.other.close()
		if left := w.dev.Objects().String(); left != "" {
			t.Errorf("remaining objects: got %s, want none", left)
		}
		srv.Close()
		must(t, core.Unregister(dev.Handle()))
		must(t, dev.Close())
	})
	return w
}

func (w *sessionFixture) open(t testing.TB) *sessionProgram {
	t.Helper()
	p := &sessionProgram{space: newLockedSpace(t, sessionMemory), mem: &queueMemory{}}
	p.acct = umem.NewAccount(func() uint64 { return 64 << 12 })
	p.ledger = quota.New(quota.Limits{})
	p.user = p.ledger.User(1)
	var err error
	p.file, err = w.srv.Open("uverbs0", p, p.mem)
	must(t, err)
	return p
}

func (p *sessionProgram) close(t testing.TB) {
	t.Helper()
	p.file.Close()
	for _, fd := range p.fds {
		unix.Close(fd)
	}
	if n := p.acct.Pages(); n != 0 {
		t.Errorf("charged pages at the end: got %d, want 0", n)
	}
	checkNoCharges(t, p.ledger)
	must(t, unix.Munmap(p.space.mem))
}

// sendCommand sends a command and returns the contents of the response buffer.
func (p *sessionProgram) sendCommand(number uint32, extended bool, core, driver []byte, room, driverRoom int) ([]byte,
	error) {
	var b []byte
	if extended {
		core = append(core, make([]byte, -len(core)&7)...)
		hdr := uapi.CmdHdr{Command: number | uapi.CmdFlagExtended, InWords: uint16(len(core) / 8), OutWords: uint16(room / 8)}
		ex := uapi.ExCmdHdr{Response: sessionResponse, ProviderInWords: uint16(len(driver) / 8),
			ProviderOutWords: uint16(driverRoom / 8)}
		if room+driverRoom == 0 {
			ex.Response = 0
		}
		b = uapi.AppendTo(uapi.AppendTo(nil, &hdr), &ex)
	} else {
		hdr := uapi.CmdHdr{Command: number, InWords: uint16((8 + len(core) + len(driver)) / 4),
			OutWords: uint16((room + driverRoom) / 4)}
		b = uapi.AppendTo(nil, &hdr)
	}
	b = append(append(b, core...), driver...)
	p.space.writeMem(sessionCommand, b)
	_, err := p.file.Write(p, sessionCommand, len(b))
	return p.space.readMem(sessionResponse, room+driverRoom), err
}

// mustCommand sends a plain command that must succeed.
func mustCommand[Resp, Req any](t testing.TB, p *sessionProgram, cmd uapi.Command, req Req, tail []byte,
	driverRoom int) Resp {
	t.Helper()
	core := append(uapi.AppendTo(nil, &req), tail...)
	if commands[uint32(cmd)].Answers {
		putUint64(core, sessionResponse)
	}
	resp, err := p.sendCommand(uint32(cmd), false, core, nil, max(uapi.SizeOf[Resp](), 8), driverRoom)
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	v, _ := uapi.DecodePrefix[Resp](resp[:min(len(resp), uapi.SizeOf[Resp]())])
	return v
}

// bystander is a process with a connection to itself. The connection must continue to work.
type bystander struct {
	*sessionProgram
	mr   uapi.RegMRResp
	cq   uint32
	qps  [2]uapi.CreateQPResp
	info string
	seen int
}

func newBystander(t testing.TB, w *sessionFixture) *bystander {
	t.Helper()
	o := &bystander{sessionProgram: w.open(t)}
	p := o.sessionProgram
	mustCommand[uapi.GetContextResp](t, p, uapi.CmdGetContext, uapi.GetContext{}, nil, 0)
	pd := mustCommand[uapi.AllocPDResp](t, p, uapi.CmdAllocPD, uapi.AllocPD{}, nil, 0).PDHandle
	o.mr = mustCommand[uapi.RegMRResp](t, p, uapi.CmdRegMR, uapi.RegMR{Start: sessionData, HCAVA: sessionData,
		Length:      0x4000,
		PDHandle:    pd,
		AccessFlags: uapi.AccessLocalWrite | uapi.AccessRemoteWrite | uapi.AccessRemoteRead | uapi.AccessRemoteAtomic}, nil,
		0)
	o.cq = mustCommand[uapi.CreateCQResp](t, p, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 16, CompChannel: -1}, nil,
		16).CQHandle
	for i := range o.qps {
		o.qps[i] = mustCommand[uapi.CreateQPResp](t, p, uapi.CmdCreateQP,
			uapi.CreateQP{PDHandle: pd, SendCQHandle: o.cq, RecvCQHandle: o.cq,
				MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uapi.QPTRC}, nil, 32)
	}
	for i := range o.qps {
		for _, m := range connectTransitions(o.qps[i].QPHandle, o.qps[1-i].QPN, w.gid) {
			m.Timeout, m.RetryCnt = 18, 7 // one second, so that the connection does not fail on a slow machine
			mustCommand[noResponse](t, p, uapi.CmdModifyQP, m, nil, 0)
		}
	}
	o.checkUnchanged(t)
	o.info = o.describeObjects()
	return o
}

// connectTransitions returns the transitions of a reliable queue pair from RESET to RTS.
func connectTransitions(qp, dest uint32, gid ib.GID) []uapi.ModifyQP {
	const access = uapi.AccessRemoteWrite | uapi.AccessRemoteRead | uapi.AccessRemoteAtomic
	return []uapi.ModifyQP{
		{QPHandle: qp, QPState: uapi.QPSInit, PortNum: 1, QPAccessFlags: access,
			AttrMask: uapi.QPAttrState | uapi.QPAttrPort | uapi.QPAttrPKeyIndex | uapi.QPAttrAccessFlags},
		{QPHandle: qp, QPState: uapi.QPSRTR, PathMTU: uint8(roce.MTU1024), DestQPNum: dest, MaxDestRDAtomic: 1,
			MinRNRTimer: 1,
			Dest:        uapi.QPDest{DGID: gid, SGIDIndex: 1, HopLimit: 64, IsGlobal: 1, PortNum: 1},
			AttrMask: uapi.QPAttrState | uapi.QPAttrAV | uapi.QPAttrPathMTU | uapi.QPAttrDestQPN | uapi.QPAttrRQPSN |
				uapi.QPAttrMaxDestRDAtomic | uapi.QPAttrMinRNRTimer},
		{QPHandle: qp, QPState: uapi.QPSRTS, Timeout: 8, RetryCnt: 1, RNRRetry: 1, MaxRDAtomic: 1,
			AttrMask: uapi.QPAttrState | uapi.QPAttrSQPSN | uapi.QPAttrTimeout | uapi.QPAttrRetryCnt | uapi.QPAttrRNRRetry |
				uapi.QPAttrMaxQPRDAtomic},
	}
}

// checkUnchanged sends a message from the bystander to itself, and checks that the bystander's objects are unchanged.
func (o *bystander) checkUnchanged(t testing.TB) {
	t.Helper()
	o.seen++
	const size = 64
	from, to := o.seen&1, 1-o.seen&1
	mark := bytes.Repeat([]byte{byte(o.seen)}, size)
	for i := range o.space.mem[:0x4000] {
		o.space.mem[i] = byte(i * 7)
	}
	o.space.writeMem(sessionData, mark)
	want := o.space.readMem(sessionData, 0x4000)
	copy(want[0x1000:], mark)
	mustCommand[uapi.PostRecvResp](t, o.sessionProgram, uapi.CmdPostRecv,
		uapi.PostRecv{QPHandle: o.qps[to].QPHandle, WRCount: 1, SGECount: 1, WQESize: uint32(uapi.SizeOf[uapi.RecvWR]())},
		encodePair(uapi.RecvWR{WRID: uint64(o.seen), NumSGE: 1},
			uapi.SGE{Addr: sessionData + 0x1000, Length: size, LKey: o.mr.LKey}), 0)
	mustCommand[uapi.PostSendResp](t, o.sessionProgram, uapi.CmdPostSend,
		uapi.PostSend{QPHandle: o.qps[from].QPHandle, WRCount: 1, SGECount: 1, WQESize: uint32(uapi.SizeOf[uapi.SendWR]())},
		encodePair(uapi.SendWR{WRID: uint64(o.seen), NumSGE: 1, Opcode: uapi.WRSend, SendFlags: uapi.SendSignaled},
			uapi.SGE{Addr: sessionData, Length: size, LKey: o.mr.LKey}), 0)
	for range 2 {
		if wc := o.awaitCompletion(t, o.cq, uint64(o.seen)); wc.Status != uapi.WCSuccess {
			t.Fatalf("bystander: got %+v for message %d, want success", wc, o.seen)
		}
	}
	if got := o.space.readMem(sessionData, 0x4000); !bytes.Equal(got, want) {
		t.Fatal("memory of the bystander: got other bytes, want the message")
	}
	if info := o.describeObjects(); o.info != "" && info != o.info {
		t.Fatalf("bystander's objects: got %s, want %s", info, o.info)
	}
}

// describeObjects returns the bystander's objects, without the packet sequence numbers. The bystander's own messages
// change these numbers.
func (o *bystander) describeObjects() string {
	info := o.file.info()
	for i := range info.QPs {
		info.QPs[i].RQPSN, info.QPs[i].SQPSN = 0, 0
	}
	return fmt.Sprintf("%+v", info)
}

// awaitCompletion polls one completion, which must have the given ID.
func (p *sessionProgram) awaitCompletion(t testing.TB, cq uint32, id uint64) uapi.WC {
	t.Helper()
	size := uapi.SizeOf[uapi.WC]()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); runtime.Gosched() {
		core := uapi.AppendTo(nil, &uapi.PollCQ{Response: sessionResponse, CQHandle: cq, NE: 1})
		resp, err := p.sendCommand(uint32(uapi.CmdPollCQ), false, core, nil, 8+size, 0)
		must(t, err)
		if binary.NativeEndian.Uint32(resp) == 0 {
			continue
		}
		wc, _ := uapi.Decode[uapi.WC](resp[8:])
		if wc.WRID != id {
			t.Fatalf("completion: got %+v, want work request %d", wc, id)
		}
		return wc
	}
	t.Fatalf("work request %d: got no completion, want one", id)
	return uapi.WC{}
}

func (o *bystander) close() { o.file.Close(); unix.Munmap(o.space.mem); o.closeFDs() }

func (p *fuzzProgram) closeFDs() {
	for _, fd := range p.fds {
		unix.Close(fd)
	}
}

func encodePair[A, B any](a A, b B) []byte { return uapi.AppendTo(uapi.AppendTo(nil, &a), &b) }

// fuzzScript is the fuzzer's input: every decision of a session. After the end of the script all decisions are 0.
type fuzzScript []byte

func (s *fuzzScript) nextByte() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *fuzzScript) nextNumberBelow(n int) int {
	if n <= 0 {
		return 0
	}
	return int(s.nextByte()) % n
}

func (s *fuzzScript) nextWord() uint32 {
	var b [4]byte
	for i := range b {
		b[i] = s.nextByte()
	}
	return binary.LittleEndian.Uint32(b[:])
}

// fuzzSession runs a program according to a script.
type fuzzSession struct {
	t testing.TB
	w *sessionFixture
	p *sessionProgram
	s *fuzzScript
}

// pickNumber usually returns a number from a pool, and otherwise a number of the bystander or an arbitrary number.
func (x *fuzzSession) pickNumber(from []uint32) uint32 {
	switch c := x.s.nextByte(); {
	case len(from) > 0 && c < 224:
		return from[len(from)-1-int(c)%len(from)]
	case c < 240:
		o := x.w.other
		return []uint32{o.qps[0].QPN, o.qps[1].QPN, o.mr.LKey, o.mr.RKey, o.qps[0].QPHandle, o.mr.MRHandle,
			o.cq}[x.s.nextNumberBelow(7)]
	case c < 252:
		return uint32(x.s.nextByte())
	}
	return x.s.nextWord()
}

// fillRequest sets every field of a request according to its name.
func (x *fuzzSession) fillRequest(v reflect.Value) {
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		switch f.Kind() {
		case reflect.Struct:
			x.fillRequest(f)
		case reflect.Array:
			if strings.HasSuffix(name, "GID") && x.s.nextByte() < 240 {
				reflect.Copy(f, reflect.ValueOf(x.w.gid[:]))
			}
		case reflect.Int32:
			f.SetInt(-1)
			if n := len(x.p.channels); n > 0 && x.s.nextByte() < 160 {
				f.SetInt(int64(x.p.channels[x.s.nextNumberBelow(n)]))
			}
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			v := x.fieldValue(name)
			f.SetUint(v & (1<<(f.Type().Size()*8-1)<<1 - 1))
		}
	}
}

func (x *fuzzSession) fieldValue(name string) uint64 {
	if p, ok := numberKindsByField[name]; ok {
		return uint64(x.pickNumber(x.p.handles[p]))
	}
	switch name {
	case "Response":
		return sessionResponse
	case "Start", "HCAVA":
		if v := uint64(x.s.nextByte()); v > 230 {
			return sessionData + v<<6
		}
		return sessionData
	case "Length":
		if v := uint64(x.s.nextByte()); v > 200 {
			return v << (x.s.nextByte() & 7)
		}
		return 0x4000
	case "PortNum", "SGIDIndex", "IsGlobal":
		if x.s.nextByte() < 250 {
			return 1
		}
		return uint64(x.s.nextByte())
	case "QPType":
		return uint64([]uapi.QPType{uapi.QPTRC, uapi.QPTRC, uapi.QPTUC, uapi.QPTUD, uapi.QPTUD, uapi.QPTXRCIni,
			uapi.QPTXRCTgt, uapi.QPTRawPacket}[x.s.nextNumberBelow(8)])
	case "MWType":
		return uint64(1 + x.s.nextNumberBelow(3))
	case "QPState", "CurQPState", "SRQType", "PathMTU":
		return uint64(x.s.nextNumberBelow(8))
	case "AccessFlags", "QPAccessFlags":
		if v := uint64(x.s.nextByte()); v > 200 {
			return v & 0x7f
		}
		return 0xf
	case "DestQPNum", "QPN":
		return uint64(x.pickNumber(x.p.qpns))
	case "AttrMask", "Flags":
		if x.s.nextByte() < 200 {
			return uint64(x.s.nextByte() & 7)
		}
		return uint64(x.s.nextWord())
	case "CreateFlags", "IsSRQ", "CompVector":
		return uint64(max(x.s.nextByte(), 224) - 224)
	case "CompMask", "Reserved", "DLID", "FlowLabel", "MLID", "OFlags", "MaxNumTags":
		return 0
	}
	return 1 + uint64(x.s.nextByte()&15) // for counts, numbers in a small range, and handles of the program itself
}

var numberKindsByField = map[string]numberKind{
	"PDHandle": poolPD, "MRHandle": poolMR, "CQHandle": poolCQ, "SendCQHandle": poolCQ, "RecvCQHandle": poolCQ,
	"QPHandle": poolQP, "AHHandle": poolAH, "SRQHandle": poolSRQ, "MWHandle": poolMW, "XRCDHandle": poolXRCD,
}

// sendRandomCommand sends a command of the table, possibly damaged, in any of the three forms.
func (x *fuzzSession) sendRandomCommand(i int, damages int) {
	c := &sessionCommands[i]
	req := reflect.New(reflect.TypeOf(c.req)).Elem()
	x.fillRequest(req)
	core := encodeValue(req)
	form := x.s.nextByte()
	var driver []byte
	if c.number == uint32(uapi.CmdResizeCQ) || form&0x40 != 0 {
		driver = make([]byte, 8)
	}
	for range damages {
		x.damageWord(core)
	}
	if damages > 0 && form&0x80 != 0 {
		core = append(core, make([]byte, 4*x.s.nextNumberBelow(5))...)
		core = core[:max(0, len(core)-4*x.s.nextNumberBelow(5))]
	}
	driverRoom := c.driver
	if c.extended {
		driverRoom = (driverRoom + 7) &^ 7
	}
	var resp []byte
	var err error
	if form&3 == 3 {
		resp, err = x.sendByInvokeWrite(c.number, c.extended, core, driver, c.resp, driverRoom)
	} else {
		resp, err = x.p.sendCommand(c.number, c.extended, core, driver, c.resp, driverRoom)
	}
	x.checkErrno(err)
	if err == nil && c.makes != poolNone && len(resp) >= 4 {
		x.recordObject(c.makes, resp)
	}
}

func (x *fuzzSession) recordObject(k numberKind, resp []byte) {
	n := binary.NativeEndian.Uint32(resp)
	p := x.p
	p.handles[k] = append(p.handles[k], n)
	switch {
	case k == poolChannel:
		p.channels = append(p.channels, int(n))
	case k == poolQP:
		p.qpns = append(p.qpns, binary.NativeEndian.Uint32(resp[4:]))
	case k == poolMR || k == poolMW:
		for b := resp[4:]; len(b) >= 4; b = b[4:] {
			p.keys = append(p.keys, binary.NativeEndian.Uint32(b))
		}
	}
}

func encodeValue(v reflect.Value) []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.NativeEndian, v.Interface())
	// The structures have padding only at the end, which package binary omits.
	return append(b.Bytes(), make([]byte, max(0, int(v.Type().Size())-b.Len()))...)
}

// damageWord changes a word of b.
func (x *fuzzSession) damageWord(b []byte) {
	if len(b) < 4 {
		return
	}
	at := x.s.nextNumberBelow(len(b)/4) * 4
	var v uint32
	switch x.s.nextNumberBelow(5) {
	case 0:
		v = x.s.nextWord()
	case 1:
		v = 1 << (x.s.nextByte() & 31)
	case 2:
		v = ^uint32(0) - uint32(x.s.nextByte())
	case 3:
		v = x.pickNumber(slices.Concat(x.p.handles[:]...))
	case 4:
		v = binary.NativeEndian.Uint32(b[at:]) ^ 1<<(x.s.nextByte()&31)
	}
	binary.NativeEndian.PutUint32(b[at:], v)
}

// sendByInvokeWrite sends a command by INVOKE_WRITE.
func (x *fuzzSession) sendByInvokeWrite(number uint32, extended bool, core, driver []byte, room,
	driverRoom int) ([]byte, error) {
	if extended {
		number |= uapi.CmdFlagExtended
	}
	const in = sessionCommand + 0x1000
	x.p.space.writeMem(in, slices.Concat(core, driver))
	attrs := []uapi.Attr{{AttrID: uapi.AttrWriteCmd, Len: 8, Flags: uapi.AttrFMandatory, Data: uint64(number)}}
	add := func(id uapi.AttrID, n int, addr uint64, b []byte) {
		if n == 0 {
			return
		}
		a := uapi.Attr{AttrID: id, Len: uint16(n), Flags: uapi.AttrFMandatory, Data: addr}
		if b != nil && n <= 8 {
			a.Data = uint64At(append(slices.Clone(b), make([]byte, 8)...))
		}
		attrs = append(attrs, a)
	}
	add(uapi.AttrCoreIn, len(core), in, core)
	add(uapi.AttrUHWIn, len(driver), in+uint64(len(core)), driver)
	add(uapi.AttrCoreOut, room, sessionResponse, nil)
	add(uapi.AttrUHWOut, driverRoom, sessionResponse+uint64(room), nil)
	err := x.callIoctl(uapi.ObjectDevice, uapi.MethodInvokeWrite, attrs)
	return x.p.space.readMem(sessionResponse, room+driverRoom), err
}

func (x *fuzzSession) callIoctl(object uapi.ObjectID, method uapi.MethodID, attrs []uapi.Attr) error {
	hdr := uapi.IoctlHdr{Length: uint16(ioctlHdrSize + attrSize*len(attrs)), ObjectID: object, MethodID: method,
		NumAttrs: uint16(len(attrs)), DriverID: uapi.DriverRXE}
	b := uapi.AppendTo(nil, &hdr)
	for i := range attrs {
		b = uapi.AppendTo(b, &attrs[i])
	}
	x.p.space.writeMem(sessionCommand, b)
	return x.p.file.Ioctl(x.p, uapi.VerbsIoctl, sessionCommand)
}

// callRandomMethod calls a method with attributes that may or may not be suitable.
func (x *fuzzSession) callRandomMethod() {
	ids := slices.SortedFunc(mapKeys(methods), func(a, b methodID) int {
		return int(a.object)<<16 + int(a.method) - int(b.object)<<16 - int(b.method)
	})
	id := ids[x.s.nextNumberBelow(len(ids))]
	spec := methods[id].Attrs
	var attrs []uapi.Attr
	for i := range spec {
		what := x.s.nextByte()
		if what < 16 {
			continue
		}
		a := uapi.Attr{AttrID: spec[i].ID, Flags: uapi.AttrFlags(what & 1)}
		n := uint16(spec[i].Min)
		switch what >> 1 % 8 {
		case 0, 1, 2:
			a.Len, a.Data = n, uint64(x.pickNumber(x.p.handles[x.s.nextNumberBelow(int(numPools))]))
		case 3, 4:
			a.Len, a.Data = n, sessionResponse
		case 5:
			a.Len, a.Data = n+uint16(x.s.nextByte())<<2, sessionResponse
		case 6:
			a.Len, a.Data = n, uint64(x.s.nextByte()&3)
		case 7:
			a.Len, a.Data = uint16(x.s.nextByte()), sessionData
		}
		attrs = append(attrs, a)
	}
	if x.s.nextByte() > 240 && len(attrs) > 0 {
		b := uapi.AppendTo(nil, &attrs[0])
		x.damageWord(b)
		attrs[0], _ = uapi.Decode[uapi.Attr](b)
	}
	x.checkErrno(x.callIoctl(id.object, id.method, attrs))
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// connectRandomQP moves a queue pair to a state in which it can receive and send.
func (x *fuzzSession) connectRandomQP() {
	qp, dest := x.pickNumber(x.p.handles[poolQP]), x.pickNumber(x.p.qpns)
	way := connectTransitions(qp, dest, x.w.gid)
	if x.s.nextByte() < 128 {
		way = slices.Insert(way, 0, uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSReset, AttrMask: uapi.QPAttrState})
	}
	for _, m := range way {
		m.RQPSN, m.SQPSN = uint32(x.s.nextByte()), uint32(x.s.nextByte())
		_, err := x.p.sendCommand(uint32(uapi.CmdModifyQP), false, uapi.AppendTo(nil, &m), nil, 0, 0)
		x.checkErrno(err)
	}
}

// postRandomRequest posts work requests by command.
func (x *fuzzSession) postRandomRequest() {
	cmd := []uapi.Command{uapi.CmdPostSend, uapi.CmdPostRecv, uapi.CmdPostSRQRecv}[x.s.nextNumberBelow(3)]
	n := x.s.nextNumberBelow(4)
	handle := x.pickNumber(x.p.handles[poolQP])
	size := uapi.SizeOf[uapi.SendWR]()
	if cmd != uapi.CmdPostSend {
		size = uapi.SizeOf[uapi.RecvWR]()
	}
	if cmd == uapi.CmdPostSRQRecv {
		handle = x.pickNumber(x.p.handles[poolSRQ])
	}
	var wrs, sges []byte
	for range n {
		k := x.s.nextNumberBelow(3)
		if cmd == uapi.CmdPostSend {
			w := uapi.SendWR{WRID: uint64(x.s.nextByte()), NumSGE: uint32(k), Opcode: uapi.WROpcode(x.s.nextNumberBelow(16)),
				SendFlags: uapi.SendFlags(x.s.nextByte() & 0x1f)}
			r := w.Atomic()
			r.RemoteAddr, r.RKey = sessionData+uint64(x.s.nextByte())<<3, x.pickNumber(x.p.keys)
			if x.s.nextByte()&1 != 0 {
				*w.UD() = uapi.SendWRUD{AH: x.pickNumber(x.p.handles[poolAH]), RemoteQPN: x.pickNumber(x.p.qpns),
					RemoteQKey: uint32(x.s.nextByte())}
			}
			wrs = uapi.AppendTo(wrs, &w)
		} else {
			wrs = uapi.AppendTo(wrs, &uapi.RecvWR{WRID: uint64(x.s.nextByte()), NumSGE: uint32(k)})
		}
		for range k {
			sges = uapi.AppendTo(sges, &uapi.SGE{Addr: sessionData + uint64(x.s.nextByte())<<6, Length: uint32(x.s.nextByte()),
				LKey: x.pickNumber(x.p.keys)})
		}
	}
	req := uapi.PostSend{Response: sessionResponse, QPHandle: handle, WRCount: uint32(n), SGECount: uint32(len(sges) / 16),
		WQESize: uint32(size)}
	b := slices.Concat(uapi.AppendTo(nil, &req), wrs, sges)
	if x.s.nextByte() > 200 {
		x.damageWord(b)
	}
	_, err := x.p.sendCommand(uint32(cmd), false, b, nil, 8, 0)
	x.checkErrno(err)
}

// overwriteQueue overwrites a shared queue, which starts with its indices, and then rings the doorbell.
func (x *fuzzSession) overwriteQueue() {
	m := x.p.mem
	m.mu.Lock()
	regions := m.regions
	m.mu.Unlock()
	if len(regions) == 0 {
		return
	}
	q := regions[len(regions)-1-x.s.nextNumberBelow(len(regions))]
	for range 1 + x.s.nextNumberBelow(6) {
		at := 0
		switch x.s.nextNumberBelow(4) {
		case 0:
			at = uapi.RXEQueueProducerOffset
		case 1:
			at = uapi.RXEQueueConsumerOffset
		default:
			at = (uapi.RXEQueueDataOffset + int(x.s.nextByte())*4 + x.s.nextNumberBelow(3)*1024) % (len(q) - 4) &^ 3
		}
		v := uint32(x.s.nextByte())
		if x.s.nextByte() > 200 {
			v = x.pickNumber(x.p.keys)
		}
		storeWord(q, at, v)
	}
	x.ringRandomDoorbell()
}

func (x *fuzzSession) ringRandomDoorbell() {
	req := uapi.PostSend{Response: sessionResponse, QPHandle: x.pickNumber(x.p.handles[poolQP])}
	_, err := x.p.sendCommand(uint32(uapi.CmdPostSend), false, uapi.AppendTo(nil, &req), nil, 4, 0)
	x.checkErrno(err)
}

// checkErrno checks that an error wraps an errno for a program.
func (x *fuzzSession) checkErrno(err error) {
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		x.t.Errorf("error: got %v, want an errno", err)
	}
}

// runSession runs a session to its end.
func (x *fuzzSession) runSession() {
	if x.s.nextByte() != 0xff { // otherwise the script itself must contain the sequence
		given := x.s
		x.s = new(fuzzScript)
		for _, number := range []uapi.Command{uapi.CmdGetContext, uapi.CmdAllocPD, uapi.CmdRegMR, uapi.CmdCreateCompChannel,
			uapi.CmdCreateCQ,
			uapi.CmdCreateQP, uapi.CmdCreateQP, uapi.CmdCreateSRQ, uapi.CmdCreateAH} {
			x.sendRandomCommand(slices.IndexFunc(sessionCommands, func(c sessionCommandKind) bool {
				return c.number == uint32(number) &&
					!c.extended
			}), 0)
		}
		x.s = given
	}
	for steps := 0; len(*x.s) > 0 && steps < 200; steps++ {
		switch x.s.nextNumberBelow(16) {
		case 0, 1, 2, 3, 4, 5:
			x.sendRandomCommand(x.s.nextNumberBelow(len(sessionCommands)), 0)
		case 6, 7:
			x.sendRandomCommand(x.s.nextNumberBelow(len(sessionCommands)), 1+x.s.nextNumberBelow(3))
		case 8:
			x.callRandomMethod()
		case 9, 10:
			x.connectRandomQP()
		case 11, 12:
			x.postRandomRequest()
		case 13:
			x.overwriteQueue()
		case 14:
			x.ringRandomDoorbell()
		case 15:
			x.readOrCloseEvents()
		}
	}
}

// readOrCloseEvents reads an event file, or closes it.
func (x *fuzzSession) readOrCloseEvents() {
	if len(x.p.fds) == 0 {
		return
	}
	i := x.s.nextNumberBelow(len(x.p.fds))
	if fd := x.p.fds[i]; x.s.nextByte() < 200 {
		must(x.t, unix.SetNonblock(fd, true))
		unix.Read(fd, make([]byte, 8*int(1+x.s.nextByte()&7)))
	} else {
		unix.Close(fd)
		x.p.fds = slices.Delete(x.p.fds, i, i+1)
	}
}

// sessionHangTimeout is far longer than any session.
const sessionHangTimeout = 2 * time.Minute

// FuzzSession runs a program according to a script, together with a bystander. No process may crash or hang, no objects
// may remain, and the bystander must be unaffected.
func FuzzSession(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 24 {
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		b[0] = 0
		f.Add(b)
	}
	w := newSessionFixture(f)
	goroutines, fds := runtime.NumGoroutine()+16, countFDs(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		watchdog := time.AfterFunc(sessionHangTimeout, func() {
			buf := make([]byte, 1<<20)
			panic(fmt.Sprintf("a session hangs:\n%s", buf[:runtime.Stack(buf, true)]))
		})
		defer watchdog.Stop()
		p := w.open(t)
		s := fuzzScript(b)
		x := &fuzzSession{t: t, w: w, p: p, s: &s}
		x.runSession()
		p.file.info()
		p.close(t)
		if left := w.dev.Objects().String(); left != w.base {
			t.Errorf("remaining objects: got %s, want %s", left, w.base)
		}
		w.other.checkUnchanged(t)
		if w.round++; w.round%256 == 0 {
			if !testutil.PollUntil(func() bool { return runtime.NumGoroutine() <= goroutines && countFDs(t) <= fds }) {
				t.Fatalf("at the end: got %d goroutines and %d descriptors, want at most %d and %d",
					runtime.NumGoroutine(), countFDs(t),
					goroutines-16, fds)
			}
		}
	})
}

func countFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}
