package engine

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
)

// TestErrors posts requests that fail, and checks the completions, the events and the states of both ends (IBA 9.9.2
// and 9.9.3).
func TestErrors(t *testing.T) {
	const size = 3000
	type outcome struct {
		sender, receiver ib.WCStatus // the work request, and the receive posted for it
		bState           ib.QPState
		bEvents          []ib.EventType
		overtaken        bool // the SEND behind it still arrives
	}
	write := func(b *bench) ib.SendWR {
		return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
	}
	read := func(b *bench) ib.SendWR {
		wr := write(b)
		wr.Opcode = ib.WRRDMARead
		return wr
	}
	send := func(b *bench) ib.SendWR { return ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, size)} }
	// regMR registers the buffer of n with other rights or in another domain.
	regMR := func(n *node, access ib.AccessFlags, newPD bool) *ib.MR {
		pd := n.pd
		if newPD {
			var err error
			pd, err = n.dev.IB().AllocPD()
			check(n.t, err)
			n.t.Cleanup(func() { check(n.t, pd.Dealloc()) })
		}
		mr, err := pd.RegMR(ib.MRInit{Space: n.mem, Addr: n.addr, Length: uint64(len(n.buf)), Access: access})
		check(n.t, err)
		n.t.Cleanup(func() { check(n.t, mr.Dereg()) })
		return mr
	}
	accessError := outcome{ib.WCRemAccessErr, ib.WCWRFlushErr, ib.QPErr, []ib.EventType{ib.EventQPAccessErr}, false}
	invalidRequest := outcome{ib.WCRemInvReqErr, ib.WCWRFlushErr, ib.QPErr, []ib.EventType{ib.EventQPReqErr}, false}
	for _, c := range []struct {
		name string
		conn conn
		wr   func(b *bench) ib.SendWR
		recv int // bytes of the receive; 0: size
		key  uint32
		want outcome
	}{
		{name: "message longer than the receive", wr: send, recv: size - 1,
			want: outcome{ib.WCRemInvReqErr, ib.WCLocLenErr, ib.QPErr, nil, false}},
		{name: "receive with a wrong key", wr: send, key: 0xdeadbe00,
			want: outcome{ib.WCRemOpErr, ib.WCLocProtErr, ib.QPErr, nil, false}},
		{name: "unknown remote key",
			wr:   func(b *bench) ib.SendWR { wr := write(b); wr.RKey += 1 << 8; return wr },
			want: accessError},
		{name: "remote key of an earlier registration",
			wr:   func(b *bench) ib.SendWR { wr := write(b); wr.RKey ^= 1; return wr },
			want: accessError},
		{name: "write past the end",
			wr:   func(b *bench) ib.SendWR { wr := write(b); wr.RemoteAddr += uint64(len(b.b.buf)) - size + 1; return wr },
			want: accessError},
		{name: "write around the end of the address space",
			wr:   func(b *bench) ib.SendWR { wr := write(b); wr.RemoteAddr = ^uint64(0) - 10; return wr },
			want: accessError},
		{name: "read past the end",
			wr:   func(b *bench) ib.SendWR { wr := read(b); wr.RemoteAddr += uint64(len(b.b.buf)) - size + 1; return wr },
			want: accessError},
		{name: "write to a region without the right",
			wr: func(b *bench) ib.SendWR {
				wr := write(b)
				wr.RKey = regMR(b.b, ib.AccessLocalWrite|ib.AccessRemoteRead, false).RKey()
				return wr
			},
			want: accessError},
		{name: "read from a region without the right",
			wr: func(b *bench) ib.SendWR {
				wr := read(b)
				wr.RKey = regMR(b.b, ib.AccessLocalWrite|ib.AccessRemoteWrite, false).RKey()
				return wr
			},
			want: accessError},
		{name: "write to a region of another domain",
			wr:   func(b *bench) ib.SendWR { wr := write(b); wr.RKey = regMR(b.b, allAccess, true).RKey(); return wr },
			want: accessError},
		{name: "atomic without the right",
			wr: func(b *bench) ib.SendWR {
				wr := read(b)
				wr.Opcode, wr.SGList = ib.WRAtomicFetchAdd, b.a.sge(0, 8)
				wr.RKey = regMR(b.b, ib.AccessLocalWrite|ib.AccessRemoteWrite, false).RKey()
				return wr
			},
			want: accessError},
		{name: "misaligned atomic",
			wr: func(b *bench) ib.SendWR {
				wr := read(b)
				wr.Opcode, wr.SGList = ib.WRAtomicFetchAdd, b.a.sge(0, 8)
				wr.RemoteAddr += 4
				return wr
			},
			want: invalidRequest},
		{name: "write to a queue pair without the right", conn: conn{access: ib.AccessRemoteRead}, wr: write,
			want: invalidRequest},
		{name: "read from a queue pair without the right", conn: conn{access: ib.AccessRemoteWrite}, wr: read,
			want: invalidRequest},
		{name: "read from a queue pair without resources", conn: conn{destRdAtomic: -1}, wr: read, want: invalidRequest},
		{name: "read with no reads allowed", conn: conn{rdAtomic: -1}, wr: read,
			want: outcome{ib.WCLocQPOpErr, ib.WCSuccess, ib.QPRTS, nil, false}},
		{name: "gather with a wrong key",
			wr:   func(b *bench) ib.SendWR { wr := send(b); wr.SGList[0].LKey ^= 1 << 9; return wr },
			want: outcome{ib.WCLocProtErr, ib.WCSuccess, ib.QPRTS, nil, false}},
		{name: "gather past the end",
			wr:   func(b *bench) ib.SendWR { wr := send(b); wr.SGList = b.a.sge(len(b.a.buf)-size+1, size); return wr },
			want: outcome{ib.WCLocProtErr, ib.WCSuccess, ib.QPRTS, nil, false}},
		{name: "second gather element with a wrong key",
			wr: func(b *bench) ib.SendWR {
				wr := send(b)
				wr.SGList = append(b.a.sge(0, 2000), ib.SGE{Addr: b.a.addr, Length: 1000, LKey: 77})
				return wr
			},
			want: outcome{ib.WCLocProtErr, ib.WCSuccess, ib.QPRTS, nil, false}},
		{name: "gather from another domain",
			wr: func(b *bench) ib.SendWR {
				wr := send(b)
				wr.SGList[0].LKey = regMR(b.a, allAccess, true).LKey()
				return wr
			},
			want: outcome{ib.WCLocProtErr, ib.WCSuccess, ib.QPRTS, nil, false}},
		{name: "read into a region that may not be written",
			wr:   func(b *bench) ib.SendWR { wr := read(b); wr.SGList[0].LKey = regMR(b.a, 0, false).LKey(); return wr },
			want: outcome{ib.WCLocProtErr, ib.WCSuccess, ib.QPRTS, nil, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s setup) {
				b := newBench(t, s)
				b.connect(c.conn)
				fill(b.b.buf, 1)
				before := bytes.Clone(b.b.buf)
				rwr := ib.RecvWR{ID: 100, SGList: b.b.sge(0, size)}
				if c.recv != 0 {
					rwr.SGList[0].Length = uint32(c.recv)
				}
				if c.key != 0 {
					rwr.SGList[0].LKey = c.key
				}
				_, err := b.b.qp.PostRecv(rwr, ib.RecvWR{ID: 101})
				check(t, err)
				wr := c.wr(b)
				wr.ID = 1
				b.a.send(
					ib.SendWR{ID: 0, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled}, // empty, so it never fails
					wr,
					ib.SendWR{ID: 2, Opcode: ib.WRSend},
				)
				want := []ib.WC{
					{ID: 0, Opcode: ib.WCRDMAWrite}, {ID: 1, Status: c.want.sender}, {ID: 2, Status: ib.WCWRFlushErr},
				}
				if c.conn.access != 0 && c.conn.access&ib.AccessRemoteWrite == 0 {
					want = []ib.WC{{ID: 0, Status: c.want.sender}, {ID: 1, Status: ib.WCWRFlushErr}, {ID: 2, Status: ib.WCWRFlushErr}}
				}
				b.a.expect(want...)
				if s := b.a.qp.State(); s != ib.QPErr {
					t.Errorf("sender is in state %v", s)
				}
				if s := b.b.qp.State(); s != c.want.bState {
					t.Errorf("receiver is in state %v, want %v", s, c.want.bState)
				}
				if c.want.overtaken {
					b.b.expect(ib.WC{ID: 100, Opcode: ib.WCRecv})
				} else if c.want.receiver == ib.WCSuccess {
					b.b.none()
				} else {
					b.b.expect(ib.WC{ID: 100, Status: c.want.receiver}, ib.WC{ID: 101, Status: ib.WCWRFlushErr})
				}
				testutil.AdvanceTime(time.Millisecond)
				if got := b.b.raised(); !slices.Equal(got, c.want.bEvents) {
					t.Errorf("receiver's events are %v, want %v", got, c.want.bEvents)
				}
				if c.wr(b).Opcode != ib.WRSend && !bytes.Equal(before, b.b.buf) {
					t.Error("the receiver's memory has changed")
				}
				// Later requests are flushed too.
				b.a.send(ib.SendWR{ID: 3, Opcode: ib.WRSend})
				b.a.recv(4, 0, 10)
				b.a.expect(ib.WC{ID: 3, Status: ib.WCWRFlushErr}, ib.WC{ID: 4, Status: ib.WCWRFlushErr})
				b.again(conn{})
			})
		})
	}
}

// again takes both queue pairs through RESET to RTS and checks that they work.
func (b *bench) again(c conn) {
	b.t.Helper()
	for _, n := range []*node{b.a, b.b} {
		check(b.t, n.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	}
	b.connect(c)
	transfer(b, ib.WRSend, 5000, 1)
	transfer(b, ib.WRRDMARead, 5000, 2)
}

// TestRetryExceeded cuts the link. The work request must fail after the timeouts of its attributes.
func TestRetryExceeded(t *testing.T) {
	for _, c := range []struct {
		op             ib.WROpcode
		timeout, retry uint8
	}{{ib.WRSend, 14, 1}, {ib.WRSend, 14, 7}, {ib.WRRDMARead, 16, 3}, {ib.WRRDMAWrite, 12, 2}} {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{})
			b.connect(conn{timeout: c.timeout, retry: c.retry})
			b.net.SetLink(addrB, false)
			start := time.Now()
			b.a.send(ib.SendWR{ID: 1, Opcode: c.op, SGList: b.a.sge(0, 100), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()},
				ib.SendWR{ID: 2, Opcode: ib.WRSend})
			b.a.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr}, ib.WC{ID: 2, Status: ib.WCWRFlushErr})
			// IBA 9.7.6.1.3: the timeout is between the value and four times the value.
			one := 4096 * time.Nanosecond << c.timeout
			if d := time.Since(start); d < one*time.Duration(c.retry+1) || d > 4*one*time.Duration(c.retry+1) {
				t.Errorf("timeout %d, %d retries: gave up after %v", c.timeout, c.retry, d)
			}
			if n := b.a.dev.Stats()["retry_exceeded_err"]; n != 1 {
				t.Errorf("retry_exceeded_err is %d", n)
			}
			b.net.SetLink(addrB, true)
			b.again(conn{})
		})
	}
}

// TestTimeoutOff tests that timeout 0 waits forever.
func TestTimeoutOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{})
		b.connect(conn{})
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPSQD}, ib.QPAttrState))
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPSQD, Timeout: 0}, ib.QPAttrState|ib.QPAttrTimeout))
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
		b.net.SetLink(addrB, false)
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend})
		testutil.AdvanceTime(time.Hour)
		b.a.none()
	})
}

// TestReceiverNotReady sends to a queue pair without a receive. The receive is posted later, or not at all.
func TestReceiverNotReady(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWriteWithImm} {
			b := newBenchIn(t, s)
			b.connect(conn{rnrTimer: 14}) // 1 ms
			wr := ib.SendWR{ID: 1, Opcode: op, Flags: ib.SendSignaled, SGList: b.a.sge(0, 9000), RemoteAddr: b.b.addr,
				RKey: b.b.mr.RKey(), Imm: 5}
			fill(b.a.buf, 3)
			second := wr
			second.RemoteAddr += 10_000
			b.a.send(wr, second)
			testutil.AdvanceTime(100 * time.Millisecond)
			b.a.none()
			if n := b.b.dev.Stats()["send_rnr_err"]; n < 50 || n > 110 {
				t.Errorf("%d RNR NAKs in 100 ms of timers of 1 ms", n)
			}
			for i := range 2 {
				to := 10_000 * i
				b.b.recv(uint64(9+i), to, 9000)
				b.a.expect(ib.WC{ID: 1, Opcode: map[ib.WROpcode]ib.WCOpcode{ib.WRSend: ib.WCSend,
					ib.WRRDMAWriteWithImm: ib.WCRDMAWrite}[op]})
				if wc := b.b.poll(1)[0]; wc.ID != uint64(9+i) || wc.Status != ib.WCSuccess || wc.ByteLen != 9000 {
					t.Errorf("receive completed as %+v", wc)
				}
				if !bytes.Equal(b.a.buf[:9000], b.b.buf[to:to+9000]) {
					t.Error("data differ")
				}
			}
			b.close()
		}
	})
}

func TestRNRRetryExceeded(t *testing.T) {
	for _, retries := range []uint8{1, 6} {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			b.connect(conn{rnrTimer: 20, rnrRetry: retries}) // 10.24 ms
			start := time.Now()
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend})
			b.a.expect(ib.WC{ID: 1, Status: ib.WCRNRRetryExcErr})
			if d, want := time.Since(start), time.Duration(retries)*10240*time.Microsecond; d < want ||
				d > want+time.Millisecond {
				t.Errorf("gave up after %v, want %v", d, want)
			}
			if s := b.b.qp.State(); s != ib.QPRTS {
				t.Errorf("the receiver is in state %v", s)
			}
		})
	}
}

// TestPostErrors tests the requests that the post calls refuse.
func TestPostErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		ok := ib.SendWR{Opcode: ib.WRSend}
		if _, err := b.a.qp.PostSend(ok); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("send in RESET: %v", err)
		}
		if _, err := b.a.qp.PostRecv(ib.RecvWR{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("receive in RESET: %v", err)
		}
		b.connect(conn{})
		for _, c := range []struct {
			name string
			wr   ib.SendWR
		}{
			{"unknown opcode", ib.SendWR{Opcode: 99}},
			{"too many elements", ib.SendWR{Opcode: ib.WRSend, SGList: make([]ib.SGE, b.a.qp.Init().Cap.MaxSendSGE+1)}},
			{"too much inline", ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: make([]byte,
				b.a.qp.Init().Cap.MaxInlineData+1)}},
			{"inline read", ib.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendInline}},
		} {
			if n, err := b.a.qp.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite}, c.wr, ok); n != 1 || !errors.Is(err,
				syscall.EINVAL) {
				t.Errorf("%s: %d taken, error %v", c.name, n, err)
			}
		}
		if _, err := b.a.qp.PostRecv(ib.RecvWR{SGList: make([]ib.SGE, b.a.qp.Init().Cap.MaxRecvSGE+1)}); !errors.Is(err,
			syscall.EINVAL) {
			t.Errorf("too many scatter elements: %v", err)
		}
		n, err := b.a.qp.PostRecv(make([]ib.RecvWR, 1000)...)
		if n != int(b.a.qp.Init().Cap.MaxRecvWR) || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("1000 receives: %d taken, error %v", n, err)
		}
		// No receive is posted, so the send queue fills up.
		n, err = b.a.qp.PostSend(slices.Repeat([]ib.SendWR{ok}, 1000)...)
		if n != int(b.a.qp.Init().Cap.MaxSendWR) || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("1000 sends: %d taken, error %v", n, err)
		}
	})
}
