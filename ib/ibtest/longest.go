package ibtest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/umem"
)

// The longest regions and messages, in memory that has no contents.

// zeroSpace is an address space in which every read returns zeros and writes have no effect, so that regions can be
// large.
type zeroSpace struct{}

func (zeroSpace) Check(addr, length uint64, write bool) error { return nil }

func (zeroSpace) ReadV(dst [][]byte, addr uint64) error {
	for _, b := range dst {
		clear(b)
	}
	return nil
}

func (zeroSpace) WriteV(src [][]byte, addr uint64) error { return nil }

func regZeroSpace(pd *ib.PD, n uint64) (*ib.MR, error) {
	return pd.RegMR(ib.MRInit{Space: zeroSpace{}, Addr: 1 << 20, IOVA: 1 << 20, Length: n, Access: ib.AccessLocalWrite})
}

func testRegionLimit(e *testEnv) {
	a := e.deviceAttr()
	pd := e.newPD()
	const long = 1 << 32 // registration of more may take a while
	n := min(a.MaxMRSize, long)
	mr, err := regZeroSpace(pd, n)
	if err != nil {
		e.Fatalf("register %#x bytes, MaxMRSize is %#x: %v", n, a.MaxMRSize, err)
	}
	destroyAtEnd(e, mr, mr.Dereg)
	if a.MaxMRSize > 1<<48 {
		e.Logf("MaxMRSize is %#x: not exceeded", a.MaxMRSize)
		return
	}
	over, err := regZeroSpace(pd, a.MaxMRSize+1)
	if err == nil {
		destroyAtEnd(e, over, over.Dereg)
		e.Fatalf("a region of %#x bytes was registered, MaxMRSize is %#x", a.MaxMRSize+1, a.MaxMRSize)
	}
	e.wantErrno("register more than MaxMRSize", err, syscall.EINVAL, syscall.ENOMEM)
}

func testMessageLimit(e *testEnv) {
	pd := e.newPD()
	most := uint64(e.connector.port.MaxMsgSize)
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD} {
		if !e.supportsType(kind) {
			e.Logf("the driver has no %v queue pairs", kind)
			continue
		}
		ops, most := []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead}, most
		if kind == ib.QPTypeUD {
			ops, most = ops[:1], uint64(e.connector.port.ActiveMTU.Bytes())
		} else if kind == ib.QPTypeUC {
			ops = ops[:2]
		}
		if most >= 1<<32-8 || most > e.deviceAttr().MaxMRSize-8 {
			e.Logf("the longest message of a %v queue pair is %#x bytes: not exceeded", kind, most)
			continue
		}
		mr, err := regZeroSpace(pd, most+8)
		e.must("register memory", err)
		destroyAtEnd(e, mr, mr.Dereg)
		for _, op := range ops {
			for _, n := range []uint64{most + 1, most + 8} {
				postTooLongMessage(e, e.newPair(pairConfig{kind: kind, pd: pd}), op, mr, uint32(n))
			}
		}
		if kind == ib.QPTypeRC && longestMessage > 0 && most <= longestMessage {
			for _, op := range ops {
				began := time.Now()
				transferLongestMessage(e, pd, op, uint32(most))
				if time.Since(began) > time.Second { // a slow device
					most = min(most, 1<<28+8)
				}
			}
		}
	}
}

// transferLongestMessage transfers a message of the maximum length, n bytes.
func transferLongestMessage(e *testEnv, pd *ib.PD, op ib.WROpcode, n uint32) {
	e.Helper()
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
	var mrs [2]*ib.MR
	to := &countingSink{}
	for i, s := range []umem.Space{zeroSpace{}, to} {
		mrs[i] = e.registerSupported(pd.RegMR, ib.MRInit{Space: s, Addr: 1 << 20, IOVA: 1 << 20, Length: uint64(n),
			Access: ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead})
	}
	local, remote := mrs[0], mrs[1]
	wr := ib.SendWR{ID: 1, Opcode: op, Flags: ib.SendSignaled}
	switch op {
	case ib.WRSend:
		e.mustPostRecv(p.qps[1], ib.RecvWR{ID: 2, SGList: []ib.SGE{{Addr: 1 << 20, Length: n, LKey: remote.LKey()}}})
	case ib.WRRDMARead:
		local, remote = remote, local
		fallthrough
	default:
		wr.RemoteAddr, wr.RKey = 1<<20, remote.RKey()
	}
	wr.SGList = []ib.SGE{{Addr: 1 << 20, Length: n, LKey: local.LKey()}}
	if k, err := p.qps[0].PostSend(wr); k != 1 {
		if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
			return
		}
		e.Fatalf("post opcode %d of %d bytes, MaxMsgSize: %v", op, n, err)
	}
	waitLongMessage(e, p.cqs[0], 1, to)
	if op == ib.WRSend {
		if wc := waitLongMessage(e, p.cqs[1], 2, to); wc.ByteLen != n {
			e.Errorf("receive of %d bytes, MaxMsgSize: got ByteLen %d", n, wc.ByteLen)
		}
	}
	if got := to.n.Load(); got < uint64(n) {
		e.Errorf("opcode %d of %d bytes, MaxMsgSize: got %d bytes stored", op, n, got)
	}
}

// waitLongMessage waits for the successful completion of a message to a sink, as long as data arrive.
func waitLongMessage(e *testEnv, cq *ib.CQ, id uint64, to *countingSink) ib.WC {
	e.Helper()
	wait, stored := e.newWaitLimit(), uint64(0)
	for {
		wc := make([]ib.WC, 1)
		n, err := cq.Poll(wc)
		e.must("poll", err)
		if n == 1 {
			if wc[0].ID != id || wc[0].Status != ib.WCSuccess {
				e.Fatalf("completion of work request %d with %q, want %d with success", wc[0].ID, wc[0].Status, id)
			}
			return wc[0]
		}
		if now := to.n.Load(); now != stored {
			wait, stored = e.newWaitLimit(), now
		}
		if wait.yieldAndCheckOver() {
			e.Fatalf("a long message: got no data for %v, want a completion", e.cfg.timeout)
		}
	}
}

// countingSink is memory that only counts the bytes written to it.
type countingSink struct {
	zeroSpace
	n atomic.Uint64
}

func (s *countingSink) WriteV(src [][]byte, addr uint64) error {
	for _, b := range src {
		s.n.Add(uint64(len(b)))
	}
	return nil
}

// postTooLongMessage posts a work request of n bytes, in two elements, which exceeds the maximum message length.
func postTooLongMessage(e *testEnv, p *pair, op ib.WROpcode, mr *ib.MR, n uint32) {
	e.Helper()
	kind := p.qps[0].Type()
	wr := p.newRDMARequest(1, op, []ib.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()},
		{Addr: mr.Addr() + 8, Length: n - 8, LKey: mr.LKey()}}, 0)
	if kind == ib.QPTypeUD {
		wr = p.newDatagramRequest(1, e.newAH(p.pd), 0)
		wr.SGList = []ib.SGE{{Addr: mr.Addr(), Length: n, LKey: mr.LKey()}}
	}
	p.postRecv(1, 2, 0, pairBufferLen)
	k, err := p.qps[0].PostSend(wr)
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
		return
	case k == 0:
		e.wantErrno(fmt.Sprintf("post opcode %d of %d bytes to a %v queue pair", op, n, kind), err, syscall.EINVAL)
	default:
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.ID != 1 || wc.Status != ib.WCLocLenErr {
			e.Fatalf("opcode %d of %d bytes on a %v queue pair: %q, want %q", op, n, kind, wc.Status, ib.WCLocLenErr)
		}
	}
	if s := p.qps[1].State(); s != ib.QPRTS {
		e.Errorf("opcode %d of %d bytes on a %v queue pair: the receiver is in %v, want %v", op, n, kind, s, ib.QPRTS)
	}
	// The receive is consumed by the next message.
	if kind == ib.QPTypeUD {
		if p.qps[0].State() == ib.QPSQE {
			e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
		}
		p.postSendWR(0, p.newDatagramRequest(3, e.newAH(p.pd), 8))
		e.waitOneCompletion(p.cqs[0], 3, ib.WCSuccess)
		if wc := e.waitOneCompletion(p.cqs[1], 2, ib.WCSuccess); wc.ByteLen != grhLen+8 {
			e.Errorf("%d bytes of a datagram that is too long have arrived", wc.ByteLen)
		}
		return
	}
	if c, _ := p.cqs[1].Poll(make([]ib.WC, 1)); c != 0 {
		e.Errorf("opcode %d of %d bytes on a %v queue pair completed a receive", op, n, kind)
	}
}
