package engine

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
	"verbena/uapi"
	"verbena/umem"
)

// observed is a driver.Observer that keeps the reports of both devices.
type observed struct {
	mu      sync.Mutex
	failed  []driver.FailedCompletion
	refused []driver.RefusedRequest
	dropped []driver.DroppedPackets
	unsent  []driver.UnsentPackets
	states  []driver.StateChange
	lost    []driver.LostCompletion
	ended   []driver.EndedKey
	inError func(num uint32) // called when a queue pair enters ERR; may be nil
}

func (o *observed) CompletionFailed(f driver.FailedCompletion) { note(o, &o.failed, f) }
func (o *observed) RequestRefused(f driver.RefusedRequest)     { note(o, &o.refused, f) }
func (o *observed) PacketsDropped(f driver.DroppedPackets)     { note(o, &o.dropped, f) }
func (o *observed) PacketsUnsent(f driver.UnsentPackets)       { note(o, &o.unsent, f) }
func (o *observed) StateChanged(f driver.StateChange) {
	if note(o, &o.states, f); f.To == ib.QPErr && o.inError != nil {
		o.inError(f.QP.Num)
	}
}
func (o *observed) CompletionLost(f driver.LostCompletion) { note(o, &o.lost, f) }
func (o *observed) KeyEnded(f driver.EndedKey)             { note(o, &o.ended, f) }

func (o *observed) TraceQueue(driver.QueueRef) driver.RequestLog { return nil }

func note[F any](o *observed, list *[]F, f F) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*list = append(*list, f)
}

// TestObserveFailures makes work requests and receives fail, and checks the reports: the failed completion of the
// requester, and the refusal of the responder with the violated rule.
func TestObserveFailures(t *testing.T) {
	const far = 1 << 40
	for _, c := range []struct {
		name    string
		conn    conn
		recv    int  // bytes of a receive; 0: none
		lost    bool // the first transmission is lost
		wr      func(b *bench) ib.SendWR
		status  uapi.WCStatus
		local   driver.Rule // expected in the failed completion
		refused driver.Rule // expected in the refused request; RuleUnknown: no refusal
		limit   uint64      // expected Violation.Limit; 0: any
		length  uint64      // expected Violation.Length; 0: any
		more    bool        // expected Violation.More
	}{
		{name: "unknown remote key", wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey() + 1}
		}, status: uapi.WCRemAccessErr, refused: driver.RuleKey},
		{name: "remote range", wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRRDMARead, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr + far, RKey: b.b.mr.RKey()}
		}, status: uapi.WCRemAccessErr, refused: driver.RuleRange, limit: 1 << 16, length: 8},
		{name: "right of the queue pair", conn: conn{access: ib.AccessRemoteRead}, wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		}, status: uapi.WCRemInvReqErr, refused: driver.RuleQPRight},
		{name: "short receive", recv: 16, wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, 32)}
		}, status: uapi.WCRemInvReqErr, refused: driver.RuleReceiveLength, limit: 16, length: 32},
		{name: "short receive for the first of several packets", recv: 16, wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, 5000)}
		}, status: uapi.WCRemInvReqErr, refused: driver.RuleReceiveLength, limit: 16, more: true},
		{name: "remote key 0 for a region with remote rights", wr: func(b *bench) ib.SendWR {
			b.b.regMR(b.b.newPD(), ib.AccessLocalWrite)
			return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr}
		}, status: uapi.WCRemAccessErr, refused: driver.RuleKey},
		{name: "remote key 0 for a region with local rights", wr: func(b *bench) ib.SendWR {
			b.b.regMR(b.b.pd, ib.AccessLocalWrite)
			return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr}
		}, status: uapi.WCRemAccessErr, refused: driver.RuleRight},
		{name: "no receive", conn: conn{rnrRetry: 2, rnrTimer: 1}, wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, 32)}
		}, status: uapi.WCRNRRetryExcErr, refused: driver.RuleNoReceive},
		{name: "no receive after a loss", conn: conn{rnrRetry: 2, rnrTimer: 1}, lost: true, wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, 32)}
		}, status: uapi.WCRNRRetryExcErr, refused: driver.RuleNoReceive},
		{name: "remote key of another domain", wr: func(b *bench) ib.SendWR {
			mr := b.b.regMR(b.b.newPD(), allAccess)
			return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: mr.RKey()}
		}, status: uapi.WCRemAccessErr, refused: driver.RuleDomain},
		{name: "local key of another domain", wr: func(b *bench) ib.SendWR {
			mr := b.a.regMR(b.a.newPD(), allAccess)
			return ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: b.a.addr, Length: 8, LKey: mr.LKey()}}}
		}, status: uapi.WCLocProtErr, local: driver.RuleDomain},
		{name: "message length, with all elements", wr: func(b *bench) ib.SendWR {
			const piece = maxMsgSize/4 + 1
			mr, err := b.a.pd.RegMR(ib.MRInit{Space: umem.NewLocal(), Length: piece, Access: ib.AccessOnDemand})
			check(b.t, err)
			b.a.mrs = append(b.a.mrs, mr)
			return ib.SendWR{Opcode: ib.WRSend, SGList: slices.Repeat([]ib.SGE{{Length: piece, LKey: mr.LKey()}}, 4)}
		}, status: uapi.WCLocLenErr, local: driver.RuleMessageLength, limit: maxMsgSize, length: maxMsgSize + 4},
		{name: "unaligned atomic", wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRAtomicFetchAdd, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr + 1, RKey: b.b.mr.RKey()}
		}, status: uapi.WCRemInvReqErr, refused: driver.RuleAlignment},
		{name: "no incoming reads", conn: conn{destRdAtomic: -1}, wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRRDMARead, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		}, status: uapi.WCRemInvReqErr, refused: driver.RuleRespDepth},
		{name: "no outgoing reads", conn: conn{rdAtomic: -1}, wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRRDMARead, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		}, status: uapi.WCLocQPOpErr, local: driver.RuleReadDepth},
		{name: "unknown local key", wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: b.a.addr, Length: 8, LKey: 5}}}
		}, status: uapi.WCLocProtErr, local: driver.RuleKey},
		{name: "local right", wr: func(b *bench) ib.SendWR {
			mr := b.a.regMR(b.a.pd, ib.AccessRemoteRead)
			return ib.SendWR{Opcode: ib.WRRDMARead, SGList: []ib.SGE{{Addr: b.a.addr, Length: 8, LKey: mr.LKey()}},
				RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		}, status: uapi.WCLocProtErr, local: driver.RuleRight},
		{name: "local range", wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(far, 8)}
		}, status: uapi.WCLocProtErr, local: driver.RuleRange, limit: 1 << 16, length: 8},
		{name: "atomic of 4 bytes", wr: func(b *bench) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRAtomicFetchAdd, SGList: b.a.sge(0, 4), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		}, status: uapi.WCLocLenErr, local: driver.RuleAtomicLength, limit: 8, length: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s setup) {
				o := &observed{}
				s.observer = o
				b := newBench(t, s)
				b.connect(c.conn)
				if c.recv > 0 {
					b.b.recv(9, 0, c.recv)
				}
				wr := c.wr(b)
				wr.ID = 1
				if c.lost {
					b.net.SetLink(addrB, false)
					time.AfterFunc(roce.AckTimeout(14).Duration()/2, func() { b.net.SetLink(addrB, true) })
				}
				b.a.send(wr)
				b.a.expect(ib.WC{ID: 1, Status: c.status})
				o.mu.Lock()
				defer o.mu.Unlock()
				i := slices.IndexFunc(o.failed, func(f driver.FailedCompletion) bool { return !f.Recv })
				if i < 0 {
					t.Fatalf("failed completions: got %+v, want one of a send", o.failed)
				}
				f := o.failed[i]
				if f.Status != c.status || f.WRID != 1 || f.QP.Num != b.a.qp.Num() || f.QP.Peer != addrB ||
					f.QP.DestQPN != b.b.qp.Num() || f.Violation.Rule != c.local {
					t.Errorf("failed completion: got %+v, want status %v, rule %d", f, c.status, c.local)
				}
				v := f.Violation
				if c.refused != driver.RuleUnknown {
					if len(o.refused) == 0 {
						t.Fatal("refused requests: got none")
					}
					r := o.refused[len(o.refused)-1]
					if v = r.Violation; v.Rule != c.refused || !r.Answered || r.QP.Num != b.b.qp.Num() {
						t.Errorf("refused request: got %+v, want rule %d", r, c.refused)
					}
				} else if len(o.refused) != 0 {
					t.Errorf("refused requests: got %+v, want none", o.refused)
				}
				if c.limit != 0 && v.Limit != c.limit || c.length != 0 && v.Length != c.length || v.More != c.more {
					t.Errorf("violation: got %+v, want limit %d, length %d and more %v", v, c.limit, c.length, c.more)
				}
				if c.conn.rnrRetry != 0 && (f.Attempts != 3 || len(o.refused) != 3) {
					t.Errorf("after 2 RNR retries: got %d attempts and %d RNR NAKs, want 3 and 3", f.Attempts, len(o.refused))
				}
			})
		})
	}
}

// TestObserveRefusals sends requests that violate a rule, in packets of its own, and compares the whole violation.
func TestObserveRefusals(t *testing.T) {
	const mtu, global, persistent = 1024, ib.AccessFlushGlobal, ib.AccessFlushPersistent
	const both = roce.FlushGlobal | roce.FlushPersistent
	for _, c := range []struct {
		name string
		conn conn
		say  func(d *dialogue) []request // the last one violates the rule
		want func(d *dialogue) driver.Violation
	}{
		{"global flush without the right", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCFlush, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8, flush: roce.FlushGlobal}}
		}, func(d *dialogue) driver.Violation { return driver.Violation{Rule: driver.RuleQPRight, Right: global} }},
		{"persistent flush without the right", conn{access: allAccess | global}, func(d *dialogue) []request {
			return []request{{op: roce.RCFlush, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8, flush: both}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleQPRight, Right: persistent}
		}},
		{"flush without any right", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCFlush, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8, flush: both}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleQPRight, Right: global | persistent}
		}},
		{"write without the right", conn{access: ib.AccessRemoteRead}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAWriteOnly, va: d.b.addr, rkey: d.b.mr.RKey()}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleQPRight, Right: ib.AccessRemoteWrite}
		}},
		{"read without the right", conn{access: ib.AccessRemoteWrite}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAReadRequest, va: d.b.addr, rkey: d.b.mr.RKey()}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleQPRight, Right: ib.AccessRemoteRead}
		}},
		{"flush of no type", conn{access: allAccess | global}, func(d *dialogue) []request {
			return []request{{op: roce.RCFlush, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8}}
		}, func(d *dialogue) driver.Violation { return driver.Violation{Rule: driver.RuleFlushType} }},
		{"flush of a region without the right", conn{access: allAccess | global}, func(d *dialogue) []request {
			return []request{{op: roce.RCFlush, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8, flush: roce.FlushGlobal}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleRight, Right: global, Key: d.b.mr.RKey(), Addr: d.b.addr, Length: 8,
				First: d.b.addr, Limit: 1 << 16}
		}},
		{"unaligned atomic", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCFetchAdd, va: d.b.addr + 4, rkey: d.b.mr.RKey()}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleAlignment, Addr: d.b.addr + 4}
		}},
		{"unaligned atomic write", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCAtomicWrite, n: 8, va: d.b.addr + 1, rkey: d.b.mr.RKey(), len: 8}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleAlignment, Addr: d.b.addr + 1}
		}},
		{"atomic write of 16 bytes", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCAtomicWrite, n: 8, va: d.b.addr, rkey: d.b.mr.RKey(), len: 16}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleAtomicLength, Length: 16, Limit: 8}
		}},
		{"short first packet", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAWriteFirst, n: mtu - 4, va: d.b.addr, rkey: d.b.mr.RKey(), len: 2 * mtu}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RulePacketLength, Length: mtu - 4, Limit: mtu}
		}},
		{"long only packet", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAWriteOnly, n: mtu + 4, va: d.b.addr, rkey: d.b.mr.RKey(), len: mtu + 4}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RulePacketLength, Length: mtu + 4, Limit: mtu}
		}},
		{"less than the length of the message", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAWriteOnly, n: 16, va: d.b.addr, rkey: d.b.mr.RKey(), len: 20}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleWriteLength, Length: 16, Limit: 20}
		}},
		{"full packet that is longer than the message", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAWriteFirst, n: mtu, va: d.b.addr, rkey: d.b.mr.RKey(), len: mtu - 4}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleWriteLength, Length: mtu, Limit: mtu - 4}
		}},
		{"rest of a message", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAWriteLast, n: 8}}
		}, func(d *dialogue) driver.Violation { return driver.Violation{Rule: driver.RuleSequence} }},
		{"no receive", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCSendOnly, n: 8}}
		}, func(d *dialogue) driver.Violation { return driver.Violation{Rule: driver.RuleNoReceive} }},
		{"no receive for immediate data", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAWriteOnlyWithImmediate, n: 8, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8}}
		}, func(d *dialogue) driver.Violation { return driver.Violation{Rule: driver.RuleNoReceive} }},
		{"no reads", conn{destRdAtomic: -1}, func(d *dialogue) []request {
			return []request{{op: roce.RCRDMAReadRequest, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8}}
		}, func(d *dialogue) driver.Violation { return driver.Violation{Rule: driver.RuleRespDepth} }},
		{"no atomics", conn{destRdAtomic: -1}, func(d *dialogue) []request {
			return []request{{op: roce.RCFetchAdd, va: d.b.addr, rkey: d.b.mr.RKey()}}
		}, func(d *dialogue) driver.Violation { return driver.Violation{Rule: driver.RuleRespDepth} }},
		{"atomic beyond the region", conn{}, func(d *dialogue) []request {
			return []request{{op: roce.RCFetchAdd, va: d.b.addr + 1<<16, rkey: d.b.mr.RKey()}}
		}, func(d *dialogue) driver.Violation {
			return driver.Violation{Rule: driver.RuleRange, Right: ib.AccessRemoteAtomic, Key: d.b.mr.RKey(),
				Addr: d.b.addr + 1<<16, Length: 8, First: d.b.addr, Limit: 1 << 16}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newDialogue(t, ib.QPTypeRC, c.conn)
				o := &observed{}
				d.b.dev.observer = o
				d.say(c.say(d)...)
				if len(o.refused) != 1 || o.refused[0].Violation != c.want(d) {
					t.Errorf("refused requests: got %+v, want one with %+v", o.refused, c.want(d))
				}
			})
		})
	}
}

// TestObserveDatagrams sends datagrams that no receive can hold.
func TestObserveDatagrams(t *testing.T) {
	const mtu = 4096
	for _, c := range []struct {
		name    string
		receive int // bytes; 0: none
		n       int
		want    driver.Violation
	}{
		{"no receive", 0, 8, driver.Violation{Rule: driver.RuleNoReceive}},
		{"longer than the receive", 50, 12, driver.Violation{Rule: driver.RuleReceiveLength, Length: grhLen + 12, Limit: 50}},
		{"longer than the MTU", mtu + grhLen + 4, mtu + 4,
			driver.Violation{Rule: driver.RulePacketLength, Length: mtu + 4, Limit: mtu}},
	} {
		bubble(t, func(t *testing.T) {
			d := newDialogue(t, ib.QPTypeUD, conn{})
			o := &observed{}
			d.b.dev.observer = o
			if c.receive > 0 {
				d.b.recv(1, 0, c.receive)
			}
			d.say(request{op: roce.UDSendOnly, n: c.n})
			if len(o.refused) != 1 || o.refused[0].Violation != c.want {
				t.Errorf("%s: got %+v, want one refusal with %+v", c.name, o.refused, c.want)
			}
		})
	}
}

// TestObserveSendErrors tests the report of packets that the network refuses, and that the retransmission succeeds.
func TestObserveSendErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := &observed{}
		n := &refusingNet{Network: simnet.New(simnet.Config{})}
		b := newBench(t, setup{network: n, addrs: [2]netip.Addr{addrA, addrB}, observer: o})
		b.connect(conn{timeout: 14})
		n.refuses.Store(1)
		b.b.recv(2, 0, 5000)
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 5000)})
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
		b.b.expect(ib.WC{ID: 2, Opcode: ib.WCRecv, ByteLen: 5000})
		if len(o.unsent) != 1 {
			t.Fatalf("unsent packets: got %+v, want one report", o.unsent)
		}
		u := o.unsent[0]
		if u.QP.Num != b.a.qp.Num() || u.QP.Peer != addrB || u.Packets != 5 || u.Err != syscall.EMSGSIZE || u.MTU != 9000 ||
			u.Longest != roce.RCSendFirst.PacketLen(1024) {
			t.Errorf("unsent packets: got %+v, want 5 to the peer that are too long", u)
		}
		if s := b.a.dev.Stats(); s["send_err"] != 5 {
			t.Errorf("send_err: got %d, want 5", s["send_err"])
		}
	})
}

// refusingNet is a network that refuses trains as too long.
type refusingNet struct {
	link.Network
	refuses atomic.Int64 // number of trains that will be refused
}

type refusingEndpoint struct {
	link.Endpoint
	net *refusingNet
}

func (n *refusingNet) Listen(a netip.Addr, r link.Receiver) (link.Endpoint, error) {
	e, err := n.Network.Listen(a, r)
	return refusingEndpoint{e, n}, err
}

func (e refusingEndpoint) Send(t *link.Train) error {
	if e.net.refuses.Add(-1) >= 0 {
		return syscall.EMSGSIZE
	}
	return e.Endpoint.Send(t)
}

// TestObserveTimeout tests the report of a request without an answer: the number and the time of its transmissions.
func TestObserveTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := &observed{}
		b := newBench(t, setup{observer: o})
		b.connect(conn{timeout: 14, retry: 2, psn: 77})
		b.net.SetLink(addrB, false)
		began := time.Now()
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend})
		b.a.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr})
		f := o.failed[0]
		timeout := roce.AckTimeout(14).Duration()
		if f.Attempts != 3 || f.PSN != 77 || !f.Since.Equal(began) || f.Time.Sub(f.Since) != 3*timeout ||
			f.Timeout != timeout {
			t.Errorf("failed completion: got %+v, want 3 attempts within %v", f, 3*timeout)
		}
		want := driver.StateCause{Reason: driver.BySend, Status: uapi.WCRetryExcErr}
		if s := o.states[len(o.states)-1]; s.To != ib.QPErr || s.From != ib.QPRTS || s.Cause != want {
			t.Errorf("last change of state: got %+v, want ERR by %v", s, want)
		}
	})
}

// TestObserveStates tests that the changes of a queue pair's state are reported in order, up to its destruction, and
// that a success causes no other report.
func TestObserveStates(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		o := &observed{}
		s.observer = o
		b := newBenchIn(t, s)
		b.connect(conn{})
		transfer(b, ib.WRSend, 5000, 1)
		transfer(b, ib.WRRDMARead, 5000, 2)
		num := b.a.qp.Num()
		b.close()
		var states []ib.QPState
		for _, c := range o.states {
			if c.QP.Num != num || c.QP.Device != "rxe0" {
				continue
			}
			if c.Cause.Reason == driver.ByDestroy {
				states = append(states, ib.QPReset)
				continue
			}
			states = append(states, c.To)
		}
		if want := []ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS, ib.QPReset}; !slices.Equal(states, want) {
			t.Errorf("states of QP %d: got %v, want %v", num, states, want)
		}
		if len(o.failed)+len(o.refused)+len(o.dropped)+len(o.unsent)+len(o.lost) != 0 {
			t.Errorf("reports after success: got %+v, want changes of state only", o)
		}
	})
}

// TestObserveDrops tests the reports of dropped packets: a queue pair that does not receive yet, and a number that no
// queue pair has.
func TestObserveDrops(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		o := &observed{}
		s.observer = o
		b := newBench(t, s)
		c := conn{timeout: 14, retry: 1}
		toRTR(t, b.a.qp, b.b.dev, b.b.qp.Num(), c)
		toRTS(t, b.a.qp, c)
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend})
		b.a.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr})
		o.mu.Lock()
		if len(o.dropped) == 0 {
			t.Fatal("packets to a QP in RESET: got no report")
		}
		d := o.dropped[0]
		if d.Reason != driver.DropState || d.QP.State != ib.QPReset || d.QP.Num != b.b.qp.Num() || d.Source != addrA {
			t.Errorf("packets to a QP in RESET: got %+v, want reason %d", d, driver.DropState)
		}
		o.dropped, o.states = nil, nil
		o.mu.Unlock()
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		toInit(t, b.a.qp, c)
		o.mu.Lock()
		if n := len(o.states); n != 2 || o.states[1].To != ib.QPInit || o.states[1].QP.Peer.IsValid() {
			t.Errorf("changes of state from ERR to INIT: got %+v, want the second without a peer", o.states)
		}
		o.mu.Unlock()
		toRTR(t, b.a.qp, b.b.dev, 0x4242, c)
		toRTS(t, b.a.qp, c)
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend})
		b.a.expect(ib.WC{ID: 2, Status: ib.WCRetryExcErr})
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.dropped) == 0 || o.dropped[0].Reason != driver.DropNoQP || o.dropped[0].QP.Num != 0x4242 {
			t.Errorf("packets to no QP: got %+v, want a report", o.dropped)
		}
	})
}

// TestObserveLostCompletion tests the report of a completion queue without room.
func TestObserveLostCompletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := &observed{}
		b := newBench(t, setup{observer: o, cqe: 1})
		b.connect(conn{})
		n := b.a.cq.Entries()
		for i := range n + 1 {
			b.b.recv(uint64(i), 0, 8)
			b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled})
		}
		testutil.AdvanceTime(time.Second)
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.lost) != 1 || o.lost[0].Entries != n || o.lost[0].Waiting != n || o.lost[0].WRID != uint64(n) {
			t.Errorf("lost completions: got %+v, want one, of request %d, for %d entries", o.lost, n, n)
		}
		if s := o.states[len(o.states)-1]; s.Cause.Reason != driver.ByCQ {
			t.Errorf("last change of state: got %+v, want the reason %v", s, driver.ByCQ)
		}
	})
}

// TestObserveDatagramToNoQP tests that the report of a datagram to a number that no queue pair has names its sender.
func TestObserveDatagramToNoQP(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		o := &observed{}
		s.typ, s.observer = ib.QPTypeUD, o
		b := newBench(t, s)
		b.connect(conn{})
		gid, err := ops{b.b.dev}.QueryGID(1, 1)
		check(t, err)
		ah, err := b.a.pd.CreateAH(&ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}})
		check(t, err)
		b.a.send(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 50), AH: ah, RemoteQPN: 0x4242,
			RemoteQKey: testQKey})
		b.a.poll(1)
		testutil.Eventually(t, "report: datagram to no QP", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return len(o.dropped) > 0
		})
		d := o.dropped[0]
		if d.Reason != driver.DropNoQP || d.QP.Num != 0x4242 || d.SourceQP != b.a.qp.Num() || d.Source != addrA {
			t.Errorf("datagram to no QP: got %+v, want QP %d of %v as its sender", d, b.a.qp.Num(), addrA)
		}
		check(t, ah.Destroy())
	})
}

// TestObserveForeign tests that a failed request counts the answers of a peer that expects other PSNs.
func TestObserveForeign(t *testing.T) {
	for _, c := range []struct {
		name string
		psn  int // difference between the sender's PSN and the expected PSN
	}{{"ahead", 1000}, {"behind", -1000}} {
		t.Run(c.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s setup) {
				o := &observed{}
				s.observer = o
				b := newBench(t, s)
				mine, other := conn{timeout: 12, retry: 2, psn: 5000}, conn{timeout: 12, retry: 2, psn: uint32(5000 + c.psn)}
				toRTR(t, b.a.qp, b.b.dev, b.b.qp.Num(), mine)
				toRTR(t, b.b.qp, b.a.dev, b.a.qp.Num(), mine)
				toRTS(t, b.a.qp, other)
				toRTS(t, b.b.qp, mine)
				b.b.recv(9, 0, 64)
				b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend})
				b.a.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr})
				o.mu.Lock()
				defer o.mu.Unlock()
				if f := o.failed[0]; f.Foreign.N == 0 || f.PSN != roce.PSN(5000+c.psn) {
					t.Errorf("failed completion: got %+v, want answers for PSNs that were never sent", f)
				}
			})
		})
	}
}

// TestObserveLossOnUC tests the report of a message on an unreliable connection for which the receive is too short.
func TestObserveLossOnUC(t *testing.T) {
	for _, length := range []int{64, 5000} {
		eachNetwork(t, func(t *testing.T, s setup) {
			o := &observed{}
			s.typ, s.observer = ib.QPTypeUC, o
			b := newBench(t, s)
			b.connect(conn{})
			b.b.recv(9, 0, 10)
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, length)})
			b.a.expect(ib.WC{ID: 1})
			testutil.Eventually(t, "report: message that is longer than the receive", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return len(o.refused) > 0
			})
			o.mu.Lock()
			defer o.mu.Unlock()
			r := o.refused[0]
			if v := r.Violation; v.Rule != driver.RuleReceiveLength || v.Limit != 10 || v.Length < 64 || r.Answered || r.Late ||
				r.QP.Num != b.b.qp.Num() {
				t.Errorf("refused request: got %+v, want a receive of 10 bytes that is too short", r)
			}
		})
	}
}

// TestObserveAcknowledged tests FailedCompletion.Acknowledged, with and without an earlier acknowledgement.
func TestObserveAcknowledged(t *testing.T) {
	for _, want := range []bool{false, true} {
		eachNetwork(t, func(t *testing.T, s setup) {
			o := &observed{}
			s.observer = o
			b := newBench(t, s)
			b.connect(conn{timeout: 14, retry: 1})
			if want {
				b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, 8),
					RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()})
				b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
			}
			check(t, b.b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend})
			b.a.expect(ib.WC{ID: 2, Status: ib.WCRetryExcErr})
			o.mu.Lock()
			defer o.mu.Unlock()
			i := slices.IndexFunc(o.failed, func(f driver.FailedCompletion) bool { return !f.Recv })
			if i < 0 || o.failed[i].Acknowledged != want {
				t.Errorf("failed completions: got %+v, want one with Acknowledged %t", o.failed, want)
			}
		})
	}
}
