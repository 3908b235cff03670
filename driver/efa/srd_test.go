package efa_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/efa"
	"verbena/ib"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
	"verbena/uapi"
	abi "verbena/uapi/efa"
	"verbena/umem"
)

// newSRD makes two programs with queue pairs of SRD and an address handle of one another each. The caller runs in a
// bubble of synctest.
func newSRD(t testing.TB, net *simnet.Net) (a, b *program, toB, toA uint16) {
	a, b = newProgram(t, net, "10.0.0.1", ib.QPTypeSRD), newProgram(t, net, "10.0.0.2", ib.QPTypeSRD)
	_, toB = a.newAH("10.0.0.2")
	_, toA = b.newAH("10.0.0.1")
	return a, b, toB, toA
}

// await takes the completion of a send request, which must have a status.
func (p *program) await(id uint16, want abi.CompStatus) {
	p.t.Helper()
	if c := p.poll(); c.Common.ReqID != id || c.Common.Status != want || c.Common.Flags>>1&3 != abi.IOSendQueue {
		p.t.Errorf("request %d: got %+v, want status %d", id, c, want)
	}
}

// faults are networks that lose, repeat and reorder packets.
var faults = map[string]link.Rule{
	"clean":   {},
	"loss":    {Drop: 0.1},
	"reorder": {Reorder: 0.3, Behind: 5, Hold: time.Millisecond},
	"repeat":  {Duplicate: 0.3},
	"all":     {Drop: 0.05, Duplicate: 0.1, Reorder: 0.2, Behind: 3, Hold: time.Millisecond},
}

// TestSRDMessages sends messages of each kind, and checks the data and the completions at both ends.
func TestSRDMessages(t *testing.T) {
	for name, rule := range faults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
				if name != "clean" {
					rule.Seed = 5
					if err := net.Faults().Add(rule); err != nil {
						t.Fatal(err)
					}
				}
				a, b, ah, back := newSRD(t, net)
				r := rand.New(rand.NewPCG(1, 2))
				const far = 100 << 10
				for i := range uint16(60) {
					n := []int{0, 1, 8, 4096}[r.IntN(4)]
					long := []int{1, 4096, 4097, 90 << 10}[r.IntN(4)]
					for k := range a.buf {
						a.buf[k], b.buf[k] = byte(int(i)+k), byte(int(i)*7+k*3)
					}
					want, op := a.buf[:n], abi.IOSend
					got, received := b.buf[:n], uint32(n)
					switch i % 4 {
					case 0, 1:
						b.recv(100+i, 0, 4096)
						a.send(i, ah, b.qp.Num(), 0, n, func(m *abi.TXMetaDesc, _ *abi.TXBufDesc) {
							if i%4 == 1 {
								m.Ctrl1 |= abi.IOTXMetaDescHasImmMask
								m.ImmediateData = 7
							}
						})
					case 2:
						want, got, op = a.buf[:long], b.buf[far:far+long], abi.IORDMAWrite
						imm := i%8 < 4
						if received = uint32(long); imm {
							b.recv(100+i, 0, 0)
						}
						a.rdma(i, ah, b.qp.Num(), op, 0, long, b.mr.RKey(), b.addr+far, imm)
					case 3:
						want, got, op = b.buf[far:far+long], a.buf[:long], abi.IORDMARead
						a.rdma(i, ah, b.qp.Num(), op, 0, long, b.mr.RKey(), b.addr+far, false)
					}
					if c := a.poll(); c.Common.ReqID != i || c.Common.Status != 0 ||
						c.Common.Flags&abi.IOCDescCommonOpTypeMask>>4 != uint8(op) {
						t.Fatalf("request %d: got %+v, want success of operation %d", i, c, op)
					}
					if i%4 < 2 || i%8 == 2 {
						c := b.poll()
						high := uint32(b.cqes[(b.polled-1)%entries*32+16]) | uint32(b.cqes[(b.polled-1)%entries*32+17])<<8
						imm := c.Common.Flags&abi.IOCDescCommonHasImmMask != 0
						if c.Common.ReqID != 100+i || c.Common.Status != 0 || uint32(c.Length)|high<<16 != received ||
							c.AH != back || c.SrcQPNum != uint16(a.qp.Num()) || imm != (i%4 != 0) || imm && c.Imm != 7 {
							t.Fatalf("receive %d: got %+v (high length %d), want %d bytes", i, c, high, received)
						}
					}
					if !bytes.Equal(got, want) {
						t.Fatalf("request %d of operation %d: got other data than were sent", i, op)
					}
				}
			})
		})
	}
}

// TestSRDStatuses tests the statuses of requests that fail at the peer, and that later requests succeed.
func TestSRDStatuses(t *testing.T) {
	for name, c := range map[string]struct {
		post func(a, b *program, ah uint16)
		want abi.CompStatus
		over bool // no later request
	}{
		"no queue pair": {func(a, b *program, ah uint16) { a.send(1, ah, b.qp.Num()+1, 0, 8, nil) },
			abi.IOCompStatusRemoteErrorBadDestQPN, false},
		"queue pair in error": {func(a, b *program, ah uint16) {
			b.check(b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			a.send(1, ah, b.qp.Num(), 0, 8, nil)
		}, abi.IOCompStatusRemoteErrorAbort, true},
		"wrong key": {func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, 8, b.mr.RKey()^0x100, b.addr, false)
		}, abi.IOCompStatusRemoteErrorBadAddress, false},
		"behind the end": {func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMARead, 0, 8, b.mr.RKey(), b.addr+uint64(len(b.buf)), false)
		}, abi.IOCompStatusRemoteErrorBadAddress, false},
		"end of a long write": {func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, 90<<10, b.mr.RKey(), b.addr+uint64(len(b.buf))-(80<<10), true)
		}, abi.IOCompStatusRemoteErrorBadAddress, false},
		"no receive": {func(a, b *program, ah uint16) {
			a.send(1, ah, b.qp.Num(), 0, 8, nil)
		}, abi.IOCompStatusRemoteErrorRNR, false},
		"short receive": {func(a, b *program, ah uint16) {
			b.recv(7, 0, 4)
			a.send(1, ah, b.qp.Num(), 0, 8, nil)
		}, abi.IOCompStatusRemoteErrorBadLength, false},
		"no address": {func(a, b *program, _ uint16) {
			_, ah := a.newAH("10.0.0.3")
			a.send(1, ah, b.qp.Num(), 0, 8, nil)
		}, abi.IOCompStatusLocalErrorUnreachRemote, false},
		"wrong Q_Key": {func(a, b *program, ah uint16) {
			a.send(1, ah, b.qp.Num(), 0, 8, func(m *abi.TXMetaDesc, _ *abi.TXBufDesc) { m.QKey++ })
		}, abi.IOCompStatusRemoteErrorBadDestQPN, false},
		"no handle of the requester": {func(a, b *program, ah uint16) {
			for h := range b.handles {
				b.destroyAH(h)
			}
			a.rdma(1, ah, b.qp.Num(), abi.IORDMARead, 0, 8, b.mr.RKey(), b.addr, false)
		}, abi.IOCompStatusRemoteErrorUnknownPeer, false},
		"no local key": {func(a, b *program, ah uint16) {
			a.send(1, ah, b.qp.Num(), 0, 8, func(_ *abi.TXMetaDesc, e *abi.TXBufDesc) { e.LKey ^= 0x100 })
		}, abi.IOCompStatusLocalErrorInvalidLKey, false},
		"too long": {func(a, b *program, ah uint16) { a.send(1, ah, b.qp.Num(), 0, 4097, nil) },
			abi.IOCompStatusLocalErrorBadLength, false},
		"RDMA WRITE too long": {func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, 1<<30+1, b.mr.RKey(), b.addr, false)
		}, abi.IOCompStatusLocalErrorBadLength, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
				a, b, ah, _ := newSRD(t, net)
				a.check(a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
				a.toRTS(2)
				before := bytes.Clone(b.buf)
				c.post(a, b, ah)
				a.await(1, c.want)
				if name != "end of a long write" && !bytes.Equal(b.buf, before) {
					t.Error("memory of the peer: got changes, want none")
				}
				if a.qp.State() != ib.QPRTS {
					t.Errorf("queue pair: got state %v, want RTS", a.qp.State())
				}
				if c.over {
					return
				}
				b.recv(8, 0, 100)
				b.recv(9, 0, 100)
				a.send(2, ah, b.qp.Num(), 0, 3, nil)
				a.await(2, abi.IOCompStatusOK)
			})
		})
	}
}

// toRTS takes the queue pair from RESET or ERR to RTS, with an RNR retry count.
func (p *program) toRTS(rnr uint8) {
	p.t.Helper()
	p.check(p.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	p.sent, p.received = 0, 0
	p.check(p.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1, QKey: qkey},
		ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey))
	p.check(p.qp.Modify(ib.QPAttr{State: ib.QPRTR}, ib.QPAttrState))
	p.check(p.qp.Modify(ib.QPAttr{State: ib.QPRTS, RNRRetry: rnr}, ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrRNRRetry))
}

// TestSRDNeighbours tests that a request with wrong local memory does not fail the request before or after it. The
// device can copy both together.
func TestSRDNeighbours(t *testing.T) {
	const end = 10 << 10 // length of the requester's region
	for _, tt := range []struct {
		name   string
		first  [2]int // offset and length of the first request
		second [2]int
	}{
		{"no data before", [2]int{0, 0}, [2]int{end, 1}},
		{"adjacent", [2]int{end - 8, 8}, [2]int{end, 8}},
		{"one byte", [2]int{0, 8}, [2]int{end, 1}},
		{"in part", [2]int{end - 16, 8}, [2]int{end - 8, 16}},
	} {
		for _, op := range []abi.SendOpType{abi.IOSend, abi.IORDMAWrite, abi.IORDMARead} {
			for _, later := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/wrong first %t", tt.name, op, later), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
						space := umem.NewLocal()
						addr, err := space.Add(a.buf)
						a.check(err)
						mr, err := a.pd.RegMR(ib.MRInit{Space: space, Addr: addr, Length: end, Access: ib.AccessLocalWrite})
						a.check(err)
						defer mr.Dereg()
						whole, wholeAddr := a.mr, a.addr
						defer func() { a.mr, a.addr = whole, wholeAddr }()
						a.mr, a.addr = mr, addr
						post := func(id uint16, m [2]int) {
							switch {
							case op == abi.IOSend:
								b.recv(8, 0, 100)
								a.send(id, ah, b.qp.Num(), m[0], m[1], nil)
							default:
								a.rdma(id, ah, b.qp.Num(), op, m[0], m[1], b.mr.RKey(), b.addr, false)
							}
						}
						a.holds = true
						if later {
							post(2, tt.second)
							post(1, tt.first)
						} else {
							post(1, tt.first)
							post(2, tt.second)
						}
						a.doorbell()
						got := map[uint16]abi.CompStatus{}
						for range 2 {
							c := a.poll()
							got[c.Common.ReqID] = abi.CompStatus(c.Common.Status)
						}
						want := map[uint16]abi.CompStatus{1: abi.IOCompStatusOK, 2: abi.IOCompStatusLocalErrorInvalidLKey}
						if !maps.Equal(got, want) {
							t.Errorf("completions: got %v, want %v", got, want)
						}
					})
				})
			}
		}
	}
}

// TestSRDElements sends a message from two elements with different keys, and writes into a receive of one.
func TestSRDElements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{}))
		for i := range a.buf {
			a.buf[i] = byte(i * 7)
		}
		for i := range uint16(20) {
			b.recv(i, 0, 4096)
			n, m := 1+int(i)*50, 2000-int(i)
			a.send(i, ah, b.qp.Num(), 0, n, func(x *abi.TXMetaDesc, _ *abi.TXBufDesc) {
				x.Length = 2
				at := a.addr + 5000
				uapi.Encode(a.sq[int(a.sent)%depth*abi.TXWQESize+abi.TXWQEDataOffset+16:], &abi.TXBufDesc{Length: uint32(m),
					LKey: a.mr.LKey(), BufAddrLo: uint32(at), BufAddrHi: uint32(at >> 32)})
			})
			a.await(i, abi.IOCompStatusOK)
			if c := b.poll(); int(c.Length) != n+m || !bytes.Equal(b.buf[:n], a.buf[:n]) ||
				!bytes.Equal(b.buf[n:n+m], a.buf[5000:5000+m]) {
				t.Fatalf("message %d: got %+v, want the bytes of both elements", i, c)
			}
		}
	})
}

// TestSRDPeerDies tests that requests to a peer that stops to answer end.
func TestSRDPeerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		a, b, ah, _ := newSRD(t, net)
		b.recv(1, 0, 100)
		a.send(1, ah, b.qp.Num(), 0, 3, nil)
		a.await(1, abi.IOCompStatusOK)
		b.poll()
		net.SetLink(netip.MustParseAddr("10.0.0.2"), false)
		began := time.Now()
		a.send(2, ah, b.qp.Num(), 0, 3, nil)
		a.await(2, abi.IOCompStatusLocalErrorUnrespRemote)
		if d := time.Since(began); d < time.Second || d > 10*time.Second {
			t.Errorf("end of the request: got it after %v, want 1 to 10 s", d)
		}
		net.SetLink(netip.MustParseAddr("10.0.0.2"), true)
		b.recv(2, 0, 100)
		a.send(3, ah, b.qp.Num(), 0, 3, nil)
		a.await(3, abi.IOCompStatusOK)
	})
}

// TestSRDPaths tests that packets of a flow leave from several source ports, the same ones with the same seed, and that
// requests succeed if the packets of one port are lost.
func TestSRDPaths(t *testing.T) {
	sent := func(t *testing.T, seed uint64, lost uint16, doorbells int) (ports []uint16) {
		synctest.Test(t, func(t *testing.T) {
			net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
			random := func(c *efa.Config) { c.Rand = rand.New(rand.NewPCG(seed, 1)) }
			a := newProgram(t, net, "10.0.0.1", ib.QPTypeSRD, random)
			b := newProgram(t, net, "10.0.0.2", ib.QPTypeSRD, random)
			_, ah := a.newAH("10.0.0.2")
			net.SetFilter(func(p *simnet.Packet) bool {
				if p.Src == netip.MustParseAddr("10.0.0.1") {
					ports = append(ports, p.SPort)
				}
				return p.SPort != lost
			})
			for i := range uint16(60) {
				b.recv(i, 0, 100)
				a.send(i, ah, b.qp.Num(), 0, 3, nil)
				a.await(i, abi.IOCompStatusOK)
				b.poll()
				for range doorbells { // each causes a run without packets
					a.doorbell()
					synctest.Wait()
				}
			}
		})
		return ports
	}
	ports := sent(t, 1, 0, 0)
	if n := len(slices.Compact(slices.Sorted(slices.Values(ports)))); n != 8 {
		t.Errorf("%d packets: got %d source ports, want 8", len(ports), n)
	}
	if again := sent(t, 1, 0, 2); !slices.Equal(again, ports) {
		t.Errorf("same seed: got ports %v, want %v", again, ports)
	}
	if other := sent(t, 2, 0, 0); slices.Equal(other, ports) {
		t.Errorf("another seed: got the same ports %v", ports)
	}
	sent(t, 1, ports[0], 0)
}

// TestSRDLateCopy tests that copies of a message that arrive after the end of its request, and after a later message of
// the requester, are not delivered.
func TestSRDLateCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		a, b, ah, _ := newSRD(t, net)
		b.recv(1, 0, 100)
		a.send(1, ah, b.qp.Num(), 0, 3, nil)
		a.await(1, abi.IOCompStatusOK)
		b.poll()
		b.recv(2, 0, 100)
		b.recv(3, 0, 100)
		a.check(net.Faults().Add(link.Rule{Peer: netip.MustParseAddr("10.0.0.2"), Delay: 8 * time.Second}))
		a.send(2, ah, b.qp.Num(), 0, 3, nil)
		a.await(2, abi.IOCompStatusLocalErrorUnrespRemote)
		net.Faults().Clear()
		a.send(3, ah, b.qp.Num(), 0, 3, nil)
		a.await(3, abi.IOCompStatusOK)
		if c := b.poll(); c.Common.ReqID != 2 {
			t.Errorf("receive: got %+v, want 2", c)
		}
		time.Sleep(20 * time.Second)
		if b.hasCompletion() {
			t.Error("late copies: got a completion, want none")
		}
	})
}

// TestSRDFlush tests that a transition to ERR completes all requests and receives in the order of posting. The requests
// wait for a receive of the peer without limit.
func TestSRDFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
		a.recv(11, 0, 100)
		a.recv(12, 0, 100)
		a.holds = true
		a.rdma(10, ah, b.qp.Num(), abi.IORDMAWrite, 0, 3, b.mr.RKey(), b.addr, false)
		a.send(1, ah, b.qp.Num(), 0, 3, nil)
		a.doorbell()
		a.await(10, abi.IOCompStatusOK) // the next request takes its place
		a.holds = false
		a.send(2, ah, b.qp.Num(), 0, 3, nil)
		a.send(3, ah, b.qp.Num()+1, 0, 5000, nil)
		a.await(3, abi.IOCompStatusLocalErrorBadLength)
		time.Sleep(time.Minute)
		a.check(a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		a.await(1, abi.IOCompStatusFlushed)
		a.await(2, abi.IOCompStatusFlushed)
		for _, id := range []uint16{11, 12} {
			if c := a.poll(); c.Common.ReqID != id || c.Common.Status != abi.IOCompStatusFlushed {
				t.Errorf("receive %d: got %+v, want a flush", id, c)
			}
		}
	})
}

// TestSRDOvertakes tests that a short message overtakes a long one that was posted before.
func TestSRDOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
		b.recv(1, 0, 100)
		a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, 200<<10, b.mr.RKey(), b.addr+1000, false)
		a.send(2, ah, b.qp.Num(), 0, 8, nil)
		a.await(2, abi.IOCompStatusOK)
		a.await(1, abi.IOCompStatusOK)
	})
}

// FuzzSRDPackets sends packets of any content, from another address and from the address of the peer, to a queue pair
// of SRD with a flow. Packets without the identifiers of the flow change no memory and complete nothing.
func FuzzSRDPackets(f *testing.F) {
	for op := range 256 {
		if o := roce.Opcode(op); o.Known() && o.Service() == roce.SRD {
			f.Add(uint8(op), uint32(0), uint32(0), uint32(0), make([]byte, 40))
			f.Add(uint8(op), uint32(1), uint32(1)<<31, uint32(0x1000), []byte("payload"))
		}
	}
	f.Fuzz(func(t *testing.T, op uint8, psn, to, value uint32, rest []byte) {
		synctest.Test(t, func(t *testing.T) {
			net := simnet.New(simnet.Config{})
			a, b, ah, _ := newSRD(t, net)
			b.recv(1, 0, 100)
			a.send(1, ah, b.qp.Num(), 0, 3, nil)
			a.await(1, abi.IOCompStatusOK)
			b.poll()
			b.recv(2, 0, 100)
			before := bytes.Clone(b.buf)
			stranger, err := net.Listen(netip.MustParseAddr("10.0.0.9"), nothing{})
			a.check(err)
			defer stranger.Close()
			rest = rest[:min(len(rest), 2000)]
			k := make([]byte, roce.BTHLen+roce.DETHLen+roce.SRDETHLen+(len(rest)+3)&^3+roce.ICRCLen)
			roce.BTH(k).Encode(&roce.BTHFields{Opcode: roce.Opcode(op), PKey: roce.DefaultPKey, DestQPN: b.qp.Num(),
				PSN: roce.MakePSN(psn)})
			roce.DETH(k[roce.BTHLen:]).Encode(qkey, a.qp.Num())
			roce.SRDETH(k[roce.BTHLen+roce.DETHLen:]).Encode(to, value)
			copy(k[roce.BTHLen+roce.DETHLen+roce.SRDETHLen:], rest)
			for range 3 {
				a.check(stranger.Send(&link.Train{Dst: netip.MustParseAddr("10.0.0.2"), Buf: bytes.Clone(k), Size: len(k)}))
			}
			time.Sleep(time.Second)
			if !bytes.Equal(b.buf, before) {
				t.Errorf("packet %x: got changes of memory, want none", k)
			}
			copy(a.buf, "works")
			a.send(2, ah, b.qp.Num(), 0, 5, nil)
			a.await(2, abi.IOCompStatusOK)
			if c := b.poll(); c.Common.ReqID != 2 || c.Length != 5 || string(b.buf[:5]) != "works" {
				t.Errorf("after packet %x: got %+v, want the message of the peer", k, c)
			}
		})
	})
}

// nothing receives packets without effect.
type nothing struct{}

func (nothing) Receive(*link.Arrival) {}

// TestSRDUnsolicited tests that RDMA WRITEs with immediate data take no receive of a queue pair with the flag, and that
// their completions are marked. A receive remains for a SEND.
func TestSRDUnsolicited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
		b.flags = abi.CreateQPWithUnsolicitedWriteRecv
		b.replaceQP(ib.QPTypeSRD)
		b.recv(7, 0, 100)
		for i, n := range []int{0, 3, 90 << 10} {
			a.rdma(uint16(i), ah, b.qp.Num(), abi.IORDMAWrite, 0, n, b.mr.RKey(), b.addr, true)
			a.await(uint16(i), abi.IOCompStatusOK)
			c := b.poll()
			const want = abi.IOCDescCommonUnsolicitedMask | abi.IOCDescCommonHasImmMask | uint8(abi.IORDMAWrite)<<4
			if c.Common.Status != 0 || c.Common.Flags&(want|abi.IOCDescCommonQTypeMask) != want|abi.IORecvQueue<<1 ||
				c.Length != uint16(n) || c.Imm != 7 {
				t.Errorf("WRITE of %d bytes: got %+v, want an unsolicited completion", n, c)
			}
		}
		a.send(9, ah, b.qp.Num(), 0, 3, nil)
		a.await(9, abi.IOCompStatusOK)
		if c := b.poll(); c.Common.ReqID != 7 || c.Common.Flags&abi.IOCDescCommonUnsolicitedMask != 0 {
			t.Errorf("SEND: got %+v, want receive 7", c)
		}
	})
}
