package efa_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/efa"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
	"verbena/uapi"
	abi "verbena/uapi/efa"
	"verbena/umem"
)

// lostSpace is memory that a program has unmapped.
type lostSpace struct{ *umem.Local }

func (lostSpace) ReadV([][]byte, uint64) error { return errors.New("unmapped") }

// TestSRDUnmappedSource tests an RDMA WRITE from memory that is no longer mapped: only the request fails.
func TestSRDUnmappedSource(t *testing.T) {
	for _, n := range []int{100, 8 << 10, 100 << 10, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{}))
			space := lostSpace{umem.NewLocal()}
			addr, err := space.Add(make([]byte, 1<<20))
			a.check(err)
			mr, err := a.pd.RegMR(ib.MRInit{Space: space, Addr: addr, Length: 1 << 20, Access: ib.AccessLocalWrite})
			a.check(err)
			defer mr.Dereg()
			mapped, mappedAddr := a.mr, a.addr
			a.mr, a.addr = mr, addr
			a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, n, b.mr.RKey(), b.addr, false)
			a.mr, a.addr = mapped, mappedAddr
			if c := a.poll(); c.Common.ReqID != 1 || c.Common.Status == 0 {
				t.Errorf("WRITE of %d bytes: got %+v, want request 1 with an error", n, c.Common)
			}
			b.recv(8, 0, 100)
			a.send(2, ah, b.qp.Num(), 0, 3, nil)
			if c := a.poll(); c.Common.ReqID != 2 || c.Common.Status != 0 {
				t.Errorf("SEND after a WRITE of %d bytes: got %+v, want request 2 with success", n, c.Common)
			}
		})
	}
}

// TestSRDRandomRings tests a program that writes random requests, lengths and counts to its queues, while another
// program works.
func TestSRDRandomRings(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 10))
			net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
			a, b, ah, _ := newSRD(t, net)
			for range 100 {
				synctest.Wait() // The race detector does not know that programs may write while the device reads.
				a.writeRandomRequests(r, ah, b)
				if a.qp.State() != ib.QPRTS {
					break
				}
				a.sent += uint16(r.IntN(depth + 1))
				a.received += uint16(r.IntN(3))
				if r.IntN(20) == 0 {
					a.sent, a.received = uint16(r.Uint32()), uint16(r.Uint32())
				}
				a.ring(0, a.sent)
				a.ring(64, a.received)
				ibuser.DriverSide(a.qp).(ib.UserQP).Doorbell(nil)
				time.Sleep(time.Duration(r.IntN(500)) * time.Microsecond)
			}
			if err := a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
				t.Error(err)
			}
			c := newProgram(t, net, "10.0.0.3", ib.QPTypeSRD)
			_, self := c.newAH("10.0.0.3")
			c.recv(1, 0, 100)
			c.send(9, self, c.qp.Num(), 0, 3, nil)
			if w := c.poll(); w.Common.Status != 0 {
				t.Errorf("seed %d: another program got %+v, want success", seed, w.Common)
			}
		})
	}
}

// writeRandomRequests fills the queues with requests of which many are wrong.
func (p *program) writeRandomRequests(r *rand.Rand, ah uint16, to *program) {
	for i := range p.rq[:depth*16] {
		p.rq[i] = byte(r.Uint32())
	}
	for i := range depth {
		slot := p.sq[i*64:]
		for j := range slot[:64] {
			slot[j] = byte(r.Uint32())
		}
		if r.IntN(4) == 0 {
			continue
		}
		m, _ := uapi.Decode[abi.TXMetaDesc](slot)
		m.Ctrl1, m.Ctrl2 = m.Ctrl1&0x31|0x80|uint8(r.IntN(3)), 0x1c
		m.AH, m.Length, m.QKey = ah, uint16(r.IntN(4)), qkey
		m.DestQPNum = uint16([]uint32{to.qp.Num(), p.qp.Num(), to.qp.Num() + 1}[r.IntN(3)])
		uapi.Encode(slot, &m)
		off := 32
		if m.Ctrl1&15 != 0 {
			uapi.Encode(slot[off:], &abi.RemoteMemAddr{Length: r.Uint32(), RKey: to.mr.RKey(),
				BufAddrLo: uint32(to.addr) + uint32(r.IntN(1<<18)), BufAddrHi: uint32(to.addr >> 32)})
			off += 16
		}
		at := p.addr + uint64(r.IntN(1<<18))
		uapi.Encode(slot[off:], &abi.TXBufDesc{Length: uint32(1)<<r.IntN(32) - uint32(r.IntN(2)), LKey: p.mr.LKey(),
			BufAddrLo: uint32(at), BufAddrHi: uint32(at >> 32)})
	}
}

// TestSRDManyFlowsOfOneRequester tests that a queue pair that starts again thousands of times leaves room for other
// requesters.
func TestSRDManyFlowsOfOneRequester(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		a, b, ah, _ := newSRD(t, net)
		for range 4200 {
			a.check(a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			a.toRTS(0)
			a.send(1, ah, b.qp.Num(), 0, 3, nil)
			time.Sleep(200 * time.Microsecond)
		}
		c := newProgram(t, net, "10.0.0.3", ib.QPTypeSRD)
		_, toB := c.newAH("10.0.0.2")
		b.recv(1, 0, 100)
		c.send(5, toB, b.qp.Num(), 0, 3, nil)
		if w := c.poll(); w.Common.ReqID != 5 || w.Common.Status != 0 {
			t.Errorf("SEND of another requester: got %+v, want success", w.Common)
		}
	})
}

// inventor is a host that knows the Q_Key. It sends messages of queue pairs that do not exist.
type inventor struct {
	p  *program
	ep link.Endpoint
}

func (v *inventor) sendPacket(op roce.Opcode, num, to, psn uint32) {
	k := make([]byte, op.PacketLen(0))
	roce.BTH(k).Encode(&roce.BTHFields{Opcode: op, PKey: roce.DefaultPKey, DestQPN: v.p.qp.Num(), PSN: roce.MakePSN(psn)})
	roce.DETH(k[roce.BTHLen:]).Encode(qkey, num)
	roce.SRDETH(k[roce.BTHLen+roce.DETHLen:]).Encode(to, num)
	v.p.check(v.ep.Send(&link.Train{Dst: netip.MustParseAddr("10.0.0.2"), Buf: k, Size: len(k)}))
}

// Receive uses each flow that the device accepts.
func (v *inventor) Receive(a *link.Arrival) {
	for _, b := range a.Packets {
		if k, err := roce.ParseBody(b); err == nil && k.Opcode == roce.SRDFlowAccept {
			v.sendPacket(roce.SRDFlowSkip, k.BTH().DestQPN(), k.SRDETH().Value(), 1)
		}
	}
}

// TestSRDInventedRequesters tests that a host with thousands of invented queue pair numbers takes no room of other
// hosts: of those with a flow, and of new ones.
func TestSRDInventedRequesters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		a, b, ah, _ := newSRD(t, net)
		b.recv(1, 0, 100)
		a.send(1, ah, b.qp.Num(), 0, 3, nil)
		a.await(1, abi.IOCompStatusOK)
		b.poll()
		v := &inventor{p: b}
		ep, err := net.Listen(netip.MustParseAddr("10.0.0.9"), v)
		a.check(err)
		defer ep.Close()
		v.ep = ep
		for num := range uint32(5000) {
			v.sendPacket(roce.SRDFlowOpen, num+1, 0, 1)
			if num%64 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(10 * time.Millisecond)
		for i := range uint16(3) {
			c := newProgram(t, net, fmt.Sprintf("10.0.0.%d", 3+i), ib.QPTypeSRD)
			_, toB := c.newAH("10.0.0.2")
			b.recv(1, 0, 100)
			c.send(5, toB, b.qp.Num(), 0, 3, nil)
			if w := c.poll(); w.Common.ReqID != 5 || w.Common.Status != 0 {
				t.Errorf("SEND of new host %d: got %+v, want success", i, w.Common)
			}
			b.poll()
		}
		b.recv(1, 0, 100)
		a.send(2, ah, b.qp.Num(), 0, 3, nil)
		a.await(2, abi.IOCompStatusOK)
	})
}

// TestSRDManyReads tests that READ requests beyond the number that a responder keeps are repeated, and succeed: of
// many requesters, whose answers a slow network delays.
func TestSRDManyReads(t *testing.T) {
	const requesters, n = 8, 100 << 10
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond, Bandwidth: 20 << 20, SendBuffer: 64 << 10})
		short := func(c *efa.Config) { c.Netdev.MTU = 700 } // many packets in a window
		b := newProgram(t, net, "10.0.0.99", ib.QPTypeSRD, short)
		for i := range b.buf {
			b.buf[i] = byte(i * 7)
		}
		var list []*program
		for i := range requesters {
			a := newProgram(t, net, fmt.Sprintf("10.0.0.%d", 1+i), ib.QPTypeSRD, short)
			_, ah := a.newAH("10.0.0.99")
			b.newAH(fmt.Sprintf("10.0.0.%d", 1+i))
			for id := range uint16(2) {
				a.rdma(id, ah, b.qp.Num(), abi.IORDMARead, int(id)*n, n, b.mr.RKey(), b.addr+uint64(id)*n, false)
			}
			list = append(list, a)
		}
		for i, a := range list {
			for range 2 {
				if c := a.poll(); c.Common.Status != 0 {
					t.Errorf("READ of requester %d: got %+v, want success", i, c)
				}
			}
			if !bytes.Equal(a.buf[:2*n], b.buf[:2*n]) {
				t.Errorf("READ of requester %d: got other data than the peer has", i)
			}
		}
	})
}

// requester is a host that sends packets of its own to a queue pair of SRD, and keeps the answers.
type requester struct {
	accepted uint32 // identifier of the flow
	refused  []roce.SRDStatus
}

func (r *requester) Receive(a *link.Arrival) {
	for _, b := range a.Packets {
		k, err := roce.ParseBody(b)
		if err != nil {
			continue
		}
		switch k.Opcode {
		case roce.SRDFlowAccept:
			r.accepted = k.SRDETH().Value()
		case roce.SRDFlowRefuse:
			r.refused = append(r.refused, roce.SRDStatus(k.SRDETH().Value()))
		}
	}
}

// TestSRDSkipTogether sends an RDMA WRITE and a Skip with its PSN at once. The answer to the Skip reports success if
// the data are stored.
func TestSRDSkipTogether(t *testing.T) {
	const num, id = 77, 5
	for _, skipFirst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
			b := newProgram(t, net, "10.0.0.2", ib.QPTypeSRD)
			b.newAH("10.0.0.9")
			r := &requester{}
			ep, err := net.Listen(netip.MustParseAddr("10.0.0.9"), r)
			b.check(err)
			defer ep.Close()
			packet := func(op roce.Opcode, data string) []byte {
				buf := make([]byte, op.PacketLen(len(data)))
				f := roce.BTHFields{Opcode: op, PKey: roce.DefaultPKey, DestQPN: b.qp.Num(), PSN: 1}
				k := roce.NewPacket(buf, &f, len(data))
				k.DETH().Encode(qkey, num)
				k.SRDETH().Encode(r.accepted, id)
				if h := k.RETH(); h != nil {
					h.Encode(b.addr, b.mr.RKey(), uint32(len(data)))
				}
				copy(k.Payload, data)
				return buf
			}
			send := func(buf []byte, size int) {
				b.check(ep.Send(&link.Train{Dst: netip.MustParseAddr("10.0.0.2"), Buf: buf, Size: size}))
				testutil.AdvanceTime(time.Millisecond)
			}
			open := packet(roce.SRDFlowOpen, "")
			send(open, len(open))
			write, skip := packet(roce.SRDRDMAWriteOnly, "data"), packet(roce.SRDFlowSkip, "")
			want, wantStatus := "data", roce.SRDSuccess
			if skipFirst {
				send(skip, len(skip))
				send(write, len(write))
				want, wantStatus = "\x00\x00\x00\x00", roce.SRDSkipped
			} else {
				send(append(write, skip...), len(write))
			}
			if len(r.refused) != 1 || r.refused[0] != wantStatus || string(b.buf[:4]) != want {
				t.Errorf("Skip first %t: got the answers %v and the data %q, want %v and %q", skipFirst, r.refused, b.buf[:4],
					wantStatus, want)
			}
		})
	}
}
