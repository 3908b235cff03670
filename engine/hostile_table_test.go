package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"verbena/driver"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/roce"
)

// heard returns the answers of the device since the last call: opcode, PSN relative to the first, syndrome, bytes.
func (h *hostile) heard() (got []string) {
	for _, k := range h.answers {
		s := k.Opcode.String()
		if a := k.AETH(); a != nil && k.Opcode == roce.RCAcknowledge {
			s = a.Syndrome().String()
		}
		s = fmt.Sprintf("%s %+d", strings.TrimPrefix(s, "RC "), k.BTH().PSN().Diff(hostilePSN))
		if n := len(k.Payload); n > 0 {
			s += fmt.Sprintf(" (%d)", n)
		}
		got = append(got, s)
	}
	h.answers = nil
	return got
}

// TestHostilePackets sends invalid packets, and checks the reaction that the specification prescribes. After each
// case the bystander still works, and no protected memory has changed.
func TestHostilePackets(t *testing.T) {
	silence := []string(nil)
	nak := func(s roce.Syndrome, psn int) []string { return []string{fmt.Sprintf("%v %+d", s, psn)} }
	invalidRequest, accessError := nak(roce.NAKInvalidRequest, 0), nak(roce.NAKRemoteAccessError, 0)
	sequenceError := nak(roce.NAKPSNSequenceError, 0)
	const mtu, rts, dead = hostileMTU, ib.QPRTS, ib.QPErr

	write := func(h *hostile, op roce.Opcode, psn, n, length, region int) craft {
		return craft{op: op, psn: psn, n: n, length: uint32(length), va: regionVA(region), rkey: h.key(region)}
	}
	one := func(c craft) func(*hostile) []craft { return func(*hostile) []craft { return []craft{c} } }
	list := func(c ...craft) func(*hostile) []craft { return func(*hostile) []craft { return c } }

	for _, c := range []struct {
		name      string
		to        int  // index of the queue pair
		elsewhere bool // the packets have the number of another queue pair
		noRecv    bool
		packets   func(h *hostile) []craft
		want      []string
		state     ib.QPState // final state of the queue pair
		count     string     // name of the counter that goes up
		by        uint64     // increase of the counter; 0: 1
		recv      ib.WCStatus
		done      int // number of completed receives, the first with status recv
	}{
		// Not for this queue pair, or for none: dropped (IBA 9.6.1).
		{name: "no such queue pair", elsewhere: true, packets: one(craft{num: 0x00beef, op: roce.RCSendOnly}), state: rts, count: "drop_unknown_qp"},
		{name: "a number of another generation", elsewhere: true, packets: func(h *hostile) []craft {
			return []craft{{num: h.qps[rc].num ^ 1<<16, op: roce.RCSendOnly, psn: hostilePSN}}
		}, state: rts, count: "drop_unknown_qp"},
		{name: "queue pair 0", elsewhere: true, packets: one(craft{num: roce.QPNSMI, op: roce.UDSendOnly}), state: rts, count: "drop_unknown_qp"},
		{name: "the multicast number on a unicast address", elsewhere: true, packets: one(craft{num: roce.QPNMulticast, op: roce.RCSendOnly}), state: rts, count: "drop_unknown_qp"},
		{name: "another source address", packets: one(craft{src: addrA, op: roce.RCSendOnly}), state: rts, count: "drop_wrong_source"},
		{name: "UC to RC", packets: one(craft{op: roce.UCSendOnly}), state: rts, count: "drop_wrong_service"},
		{name: "UD to RC", packets: one(craft{op: roce.UDSendOnly, qkey: testQKey}), state: rts, count: "drop_wrong_service"},
		{name: "XRC to RC", packets: one(craft{op: roce.XRCSendOnly}), state: rts, count: "drop_wrong_service"},
		{name: "acknowledgement to an XRC target", to: xrc, packets: one(craft{op: roce.XRCAcknowledge}), state: rts,
			count: "drop_wrong_service"},
		{name: "READ response to an XRC target", to: xrc, packets: one(craft{op: roce.XRCRDMAReadResponseOnly, n: 4}),
			state: rts, count: "drop_wrong_service"},
		{name: "CNP to RC", packets: one(craft{op: roce.CNP}), state: rts, count: "drop_wrong_service"},
		{name: "RC to UC", to: uc, packets: one(craft{op: roce.RCSendOnly}), state: rts, count: "drop_wrong_service"},
		{name: "RC READ to UC", to: uc, packets: one(craft{op: roce.RCRDMAReadRequest, length: 8}), state: rts, count: "drop_wrong_service"},
		{name: "RC acknowledgement to UC", to: uc, packets: one(craft{op: roce.RCAcknowledge}), state: rts, count: "drop_wrong_service"},
		{name: "RC to UD", to: ud, packets: one(craft{op: roce.RCSendOnly}), state: rts, count: "drop_wrong_service"},
		{name: "another partition", packets: one(craft{op: roce.RCSendOnly, pkey: 0x7ffe}), state: rts, count: "drop_wrong_pkey"},
		{name: "partition 0", packets: one(craft{op: roce.RCSendOnly, pkey: 0x8000}), state: rts, count: "drop_wrong_pkey"},
		{name: "a limited member of the partition", packets: one(craft{op: roce.RCSendOnly, pkey: 0x7fff, ack: true, n: 1}), state: rts,
			want: nak(roce.ACKUnlimited, 0), count: "rdma_recvs", done: 1},

		// Malformed: dropped (IBA 9.6.1.1, 9.6.1.4).
		{name: "header version 1", packets: one(craft{op: roce.RCSendOnly, version: 1}), state: rts, count: "drop_wrong_version"},
		{name: "reserved opcode of RC", packets: one(craft{op: 0x1f}), state: rts, count: "drop_unknown_opcode"},
		{name: "opcode of RD", packets: one(craft{op: 0x44}), state: rts, count: "drop_unknown_opcode"},
		{name: "opcode for manufacturers", packets: one(craft{op: 0xe4}), state: rts, count: "drop_unknown_opcode"},
		{name: "opcode of SRD", packets: one(craft{op: roce.SRDSendOnly}), state: rts, count: "drop_wrong_service"},
		{name: "SEND Only with more padding than payload", packets: one(craft{op: roce.RCSendOnly, morePad: 1}), state: rts, count: "drop_wrong_padding"},
		{name: "not whole words", packets: one(craft{op: roce.RCSendOnly, n: 8, cut: 1}), state: rts, count: "drop_unaligned"},
		{name: "WRITE cut within its header", packets: one(craft{op: roce.RCRDMAWriteOnly, cut: 4}), state: rts, count: "drop_short_headers"},
		{name: "atomic cut within its header", packets: one(craft{op: roce.RCFetchAdd, cut: 8}), state: rts, count: "drop_short_headers"},
		{name: "acknowledgement without AETH", packets: one(craft{op: roce.RCAcknowledge, cut: 4}), state: rts, count: "drop_short_headers"},
		{name: "READ with a payload", packets: one(craft{op: roce.RCRDMAReadRequest, n: 8}), state: rts, count: "drop_unexpected_payload"},
		{name: "datagram cut within its header", to: ud, packets: one(craft{op: roce.UDSendOnly, cut: 8, qkey: testQKey}), state: rts, count: "drop_short_headers"},

		// PSNs of requests (IBA 9.7.4.1).
		{name: "a PSN too high, and more of them", packets: list(craft{op: roce.RCSendOnly, psn: 1}, craft{op: roce.RCSendOnly, psn: 2}, craft{op: roce.RCSendOnly, psn: 1 << 22}),
			want: sequenceError, state: rts, count: "out_of_seq_request"},
		{name: "a PSN of the past", packets: one(craft{op: roce.RCSendOnly, psn: -1, n: 9}), want: nak(roce.ACKUnlimited, -1), state: rts, count: "duplicate_request"},
		{name: "a READ of the past, never seen", packets: one(craft{op: roce.RCRDMAReadRequest, psn: -1, length: 4}), state: rts, count: "drop_forgotten_duplicate"},
		{name: "an atomic of the past, never seen", packets: one(craft{op: roce.RCFetchAdd, psn: -1}), state: rts, count: "drop_forgotten_duplicate"},
		{name: "a READ repeated with another range", packets: func(h *hostile) []craft {
			good := craft{op: roce.RCRDMAReadRequest, length: 8, va: regionVA(regionReadable), rkey: h.key(regionReadable)}
			bad := good
			bad.va += 64
			return []craft{good, bad}
		}, want: []string{"RDMA READ response Only +0 (8)"}, state: rts, count: "duplicate_request"},

		// The sequence of opcodes (IBA 9.7.4.1.2): NAK invalid request.
		{name: "SEND Middle without First", packets: one(craft{op: roce.RCSendMiddle, n: mtu}), want: invalidRequest, state: dead},
		{name: "SEND Last without First", packets: one(craft{op: roce.RCSendLast, n: 4}), want: invalidRequest, state: dead},
		{name: "WRITE Last without First", packets: one(craft{op: roce.RCRDMAWriteLast, n: 4}), want: invalidRequest, state: dead},
		{name: "First after First", packets: list(craft{op: roce.RCSendFirst, n: mtu}, craft{op: roce.RCSendFirst, psn: 1, n: mtu}), want: nak(roce.NAKInvalidRequest, 1), state: dead, recv: ib.WCRemInvReqErr, done: 6},
		{name: "Only after First", packets: list(craft{op: roce.RCSendFirst, n: mtu}, craft{op: roce.RCSendOnly, psn: 1, n: 4}), want: nak(roce.NAKInvalidRequest, 1), state: dead, recv: ib.WCRemInvReqErr, done: 6},
		{name: "WRITE Last after SEND First", packets: list(craft{op: roce.RCSendFirst, n: mtu}, craft{op: roce.RCRDMAWriteLast, psn: 1, n: 4}), want: nak(roce.NAKInvalidRequest, 1), state: dead, recv: ib.WCRemInvReqErr, done: 6},
		{name: "READ within a SEND", packets: list(craft{op: roce.RCSendFirst, n: mtu}, craft{op: roce.RCRDMAReadRequest, psn: 1}), want: nak(roce.NAKInvalidRequest, 1), state: dead, recv: ib.WCRemInvReqErr, done: 6},

		// Lengths (IBA 9.7.4.1.6): NAK invalid request.
		{name: "First shorter than the path MTU", packets: one(craft{op: roce.RCSendFirst, n: mtu - 4}), want: invalidRequest, state: dead},
		{name: "First longer than the path MTU", packets: one(craft{op: roce.RCSendFirst, n: mtu + 4}), want: invalidRequest, state: dead},
		{name: "Only longer than the path MTU", packets: one(craft{op: roce.RCSendOnly, n: mtu + 1}), want: invalidRequest, state: dead},
		{name: "Middle shorter than the path MTU", packets: list(craft{op: roce.RCSendFirst, n: mtu}, craft{op: roce.RCSendMiddle, psn: 1, n: 4}), want: nak(roce.NAKInvalidRequest, 1), state: dead, recv: ib.WCRemInvReqErr, done: 6},
		{name: "Last without payload", packets: list(craft{op: roce.RCSendFirst, n: mtu}, craft{op: roce.RCSendLast, psn: 1}), want: nak(roce.NAKInvalidRequest, 1), state: dead, recv: ib.WCRemInvReqErr, done: 6},
		{name: "longer than the receive", packets: list(craft{op: roce.RCSendFirst, n: mtu}, craft{op: roce.RCSendLast, psn: 1, n: recvLen - mtu + 1}), want: nak(roce.NAKInvalidRequest, 1), state: dead, recv: ib.WCLocLenErr, done: 6},
		{name: "WRITE with more than its RETH says", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAWriteOnly, 0, 8, 4, regionOpen)}
		}, want: invalidRequest, state: dead},
		{name: "WRITE with less than its RETH says", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAWriteOnly, 0, 4, 8, regionOpen)}
		}, want: invalidRequest, state: dead},
		{name: "WRITE that goes on past its RETH", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAWriteFirst, 0, mtu, mtu+8, regionOpen), {op: roce.RCRDMAWriteLast, psn: 1, n: 12}}
		}, want: nak(roce.NAKInvalidRequest, 1), state: dead},
		{name: "WRITE that ends before its RETH does", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAWriteFirst, 0, mtu, mtu+8, regionOpen), {op: roce.RCRDMAWriteLast, psn: 1, n: 4}}
		}, want: nak(roce.NAKInvalidRequest, 1), state: dead},
		{name: "WRITE of more than 2 GiB", packets: func(h *hostile) []craft {
			c := write(h, roce.RCRDMAWriteFirst, 0, mtu, 0, regionOpen)
			c.length = 1<<31 + 1
			return []craft{c}
		}, want: accessError, state: dead},
		{name: "READ of more than 2 GiB", packets: func(h *hostile) []craft {
			c := write(h, roce.RCRDMAReadRequest, 0, 0, 0, regionOpen)
			c.length = 1<<32 - 1
			return []craft{c}
		}, want: accessError, state: dead},

		// Rights (IBA 9.7.4.1.5, 10.6.7): NAK remote access error.
		{name: "WRITE with an unknown key", packets: one(craft{op: roce.RCRDMAWriteOnly, n: 8, length: 8, va: regionVA(0), rkey: 0x7fffff00}), want: accessError, state: dead},
		{name: "WRITE with an old key", packets: func(h *hostile) []craft {
			c := write(h, roce.RCRDMAWriteOnly, 0, 8, 8, regionOpen)
			c.rkey--
			return []craft{c}
		}, want: accessError, state: dead},
		{name: "WRITE to what may be read", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAWriteOnly, 0, 8, 8, regionReadable)}
		}, want: accessError, state: dead},
		{name: "WRITE to another domain", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAWriteOnly, 0, 8, 8, regionForeign)}
		}, want: accessError, state: dead},
		{name: "WRITE before the region", packets: func(h *hostile) []craft {
			c := write(h, roce.RCRDMAWriteOnly, 0, 8, 8, regionOpen)
			c.va--
			return []craft{c}
		}, want: accessError, state: dead},
		{name: "WRITE past the region, announced by First", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAWriteFirst, 0, mtu, regionLen+1, regionOpen)}
		}, want: accessError, state: dead},
		{name: "WRITE around the end of all addresses", packets: func(h *hostile) []craft {
			c := write(h, roce.RCRDMAWriteOnly, 0, 8, 8, regionOpen)
			c.va = ^uint64(0) - 3
			return []craft{c}
		}, want: accessError, state: dead},
		{name: "READ of a huge length", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAReadRequest, 0, 0, 1<<31, regionOpen)}
		}, want: accessError, state: dead},
		{name: "READ of what is not for others", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCRDMAReadRequest, 0, 0, 8, regionLocal)}
		}, want: accessError, state: dead},
		{name: "READ of nothing needs no key", packets: one(craft{op: roce.RCRDMAReadRequest, rkey: 1}), want: []string{"RDMA READ response Only +0"}, state: rts},
		{name: "atomic on what may be read", packets: func(h *hostile) []craft {
			return []craft{write(h, roce.RCFetchAdd, 0, 0, 0, regionReadable)}
		}, want: accessError, state: dead},
		{name: "atomic at an odd address", packets: func(h *hostile) []craft {
			c := write(h, roce.RCCmpSwap, 0, 0, 0, regionOpen)
			c.va += 4
			return []craft{c}
		}, want: invalidRequest, state: dead},
		{name: "more READs than agreed on", packets: func(h *hostile) []craft {
			var l []craft
			for i := range askedReads + 1 {
				l = append(l, write(h, roce.RCRDMAReadRequest, i, 0, 4, regionOpen))
			}
			return l
		}, want: append([]string{"RDMA READ response Only +0 (4)", "RDMA READ response Only +1 (4)"}, nak(roce.NAKInvalidRequest, askedReads)...), state: dead},
		{name: "no receive", noRecv: true, packets: list(craft{op: roce.RCSendOnly, n: 4}, craft{op: roce.RCSendOnly, psn: 1, n: 4}),
			want: nak(roce.RNRNAK(1), 0), state: rts, count: "send_rnr_err"},

		// Unreliable services answer nothing (IBA 9.8.2.2, 9.8.3.2).
		{name: "UC Middle without First", to: uc, packets: one(craft{op: roce.UCSendMiddle, n: mtu}), state: rts, count: "drop_unreliable"},
		{name: "UC First after First", to: uc, packets: list(craft{op: roce.UCSendFirst, n: mtu}, craft{op: roce.UCSendFirst, psn: 1, n: mtu}, craft{op: roce.UCSendLast, psn: 2, n: 1}), state: rts, count: "rdma_recvs", done: 1},
		{name: "UC gap in a message", to: uc, packets: list(craft{op: roce.UCSendFirst, n: mtu}, craft{op: roce.UCSendLast, psn: 2, n: 1}), state: rts, count: "drop_unreliable"},
		{name: "UC Only longer than the path MTU", to: uc, packets: one(craft{op: roce.UCSendOnly, n: mtu + 4}), state: rts, count: "drop_unreliable"},
		{name: "UC WRITE with an unknown key", to: uc, packets: one(craft{op: roce.UCRDMAWriteOnly, n: 8, length: 8, rkey: 0x7fffff00}), state: rts, count: "drop_unreliable"},
		{name: "UC WRITE to another domain", to: uc, packets: func(h *hostile) []craft {
			return []craft{write(h, roce.UCRDMAWriteOnly, 0, 8, 8, regionForeign)}
		}, state: rts, count: "drop_unreliable"},
		{name: "UC without a receive", to: uc, noRecv: true, packets: one(craft{op: roce.UCSendOnly, n: 4}), state: rts, count: "drop_unreliable"},
		{name: "datagram with another Q_Key", to: ud, packets: one(craft{op: roce.UDSendOnly, n: 4, qkey: testQKey + 1}), state: rts, count: "drop_wrong_qkey"},
		{name: "datagram without a receive", to: ud, noRecv: true, packets: one(craft{op: roce.UDSendOnly, n: 4, qkey: testQKey}), state: rts, count: "drop_unreliable"},
		{name: "datagram longer than the receive", to: ud, packets: one(craft{op: roce.UDSendOnly, n: recvLen - 39, qkey: testQKey}), state: rts, count: "drop_unreliable"},
		{name: "datagram with any PSN, from anywhere", to: ud, packets: one(craft{op: roce.UDSendOnly, src: addrA, psn: 12345, n: 4, qkey: testQKey}), state: rts, count: "rdma_recvs", done: 1},

		// Responses to nothing (IBA 9.7.5.1).
		{name: "acknowledgement of nothing", packets: one(craft{op: roce.RCAcknowledge, syndrome: roce.ACKUnlimited}), state: rts, count: "drop_stale_response"},
		{name: "READ response to nothing", packets: one(craft{op: roce.RCRDMAReadResponseOnly, syndrome: roce.ACKUnlimited, n: 8}), state: rts, count: "drop_stale_response"},
		{name: "access error for nothing", packets: one(craft{op: roce.RCAcknowledge, syndrome: roce.NAKRemoteAccessError}), state: rts, count: "drop_stale_response"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t)
			defer h.close()
			if !c.noRecv {
				for range maxRecvs {
					h.postRecv(c.to)
				}
			}
			v := h.qps[c.to]
			before := h.dev.Stats()
			packets := c.packets(h)
			for i := range packets {
				if !c.elsewhere {
					packets[i].to = v.QP
				}
			}
			h.inject(packets...)
			h.run()
			if got, want := h.heard(), slices.Concat(silence, c.want); !slices.Equal(got, want) {
				t.Errorf("the device answers %q, want %q", got, want)
			}
			if s := v.QP.State(); s != c.state {
				t.Errorf("the queue pair is in %v, want %v", s, c.state)
			}
			if got, want := h.dev.Stats()[c.count]-before[c.count], max(c.by, 1); c.count != "" && got != want {
				t.Errorf("%s: got %d more, want %d", c.count, got, want)
			}
			done, wantDone := h.completions(), c.done
			if c.state == dead && wantDone == 0 {
				wantDone = maxRecvs // all receives are flushed
			}
			if len(done) != wantDone || c.done > 0 && done[0].Status != c.recv {
				t.Errorf("completions %+v, want %d, the first %v", done, wantDone, c.recv)
			}
			h.checkBounds()
			h.bystanderWorks()
			h.checkMemory()
		})
	}
}

// TestForgedResponses injects responses of a forger while work requests are in flight.
func TestForgedResponses(t *testing.T) {
	for _, c := range []struct {
		name    string
		packets []craft
		status  ib.WCStatus // status of the first completion, if there is one
		done    int
		state   ib.QPState
	}{
		// A SEND with PSN 0, and a READ of 300 bytes with PSNs 1 and 2, are in flight.
		{"acknowledgement of a PSN that was not sent", []craft{{op: roce.RCAcknowledge, psn: 3, syndrome: roce.ACKUnlimited}}, 0, 0, ib.QPRTS},
		{"acknowledgement of half the PSNs ahead", []craft{{op: roce.RCAcknowledge, psn: 1 << 22, syndrome: roce.ACKUnlimited}}, 0, 0, ib.QPRTS},
		{"acknowledgement of the past", []craft{{op: roce.RCAcknowledge, psn: -1, syndrome: roce.ACKUnlimited}}, 0, 0, ib.QPRTS},
		{"access error for a PSN that was not sent", []craft{{op: roce.RCAcknowledge, psn: 3, syndrome: roce.NAKRemoteAccessError}}, 0, 0, ib.QPRTS},
		{"access error for the past", []craft{{op: roce.RCAcknowledge, psn: -1, syndrome: roce.NAKRemoteAccessError}}, 0, 0, ib.QPRTS},
		{"RNR NAK for a PSN that was not sent", []craft{{op: roce.RCAcknowledge, psn: 3, syndrome: roce.RNRNAK(31)}}, 0, 0, ib.QPRTS},
		{"reserved syndrome 0x40", []craft{{op: roce.RCAcknowledge, syndrome: 0x40}}, 0, 0, ib.QPRTS},
		{"reserved syndrome 0xff", []craft{{op: roce.RCAcknowledge, syndrome: 0xff}}, 0, 0, ib.QPRTS},
		{"READ response to the SEND", []craft{{op: roce.RCRDMAReadResponseOnly, syndrome: roce.ACKUnlimited, n: 8}}, 0, 0, ib.QPRTS},
		{"atomic response to the SEND", []craft{{op: roce.RCAtomicAcknowledge, syndrome: roce.ACKUnlimited}}, 0, 0, ib.QPRTS},
		{"acknowledgement of the READ completes the SEND only", []craft{{op: roce.RCAcknowledge, psn: 2, syndrome: roce.ACKUnlimited}}, ib.WCSuccess, 1, ib.QPRTS},
		{"atomic response to the READ", []craft{{op: roce.RCAtomicAcknowledge, psn: 1, syndrome: roce.ACKUnlimited}}, ib.WCSuccess, 1, ib.QPRTS},
		{"READ response of the wrong length", []craft{{op: roce.RCRDMAReadResponseFirst, psn: 1, syndrome: roce.ACKUnlimited, n: 40}}, ib.WCSuccess, 2, ib.QPErr},
		{"READ response that is too long", []craft{{op: roce.RCRDMAReadResponseFirst, psn: 1, syndrome: roce.ACKUnlimited, n: hostileMTU},
			{op: roce.RCRDMAReadResponseLast, psn: 2, syndrome: roce.ACKUnlimited, n: 48}}, ib.WCSuccess, 2, ib.QPErr},
		{"NAK of a reserved code for the SEND", []craft{{op: roce.RCAcknowledge, syndrome: 0x7e}}, ib.WCRemOpErr, 2, ib.QPErr},
		{"invalid RD request for the SEND", []craft{{op: roce.RCAcknowledge, syndrome: roce.NAKInvalidRDRequest}}, ib.WCRemOpErr, 2, ib.QPErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t)
			defer h.close()
			h.postSend(rc, ib.WRSend, 100)
			h.postSend(rc, ib.WRRDMARead, 300)
			for i := range c.packets {
				c.packets[i].to = h.qps[rc].QP
			}
			h.inject(c.packets...)
			h.run()
			done := h.completions()
			if len(done) != c.done || c.done > 0 && done[0].Status != c.status {
				t.Errorf("completions %+v, want %d, the first %v", done, c.done, c.status)
			}
			if s := h.qps[rc].QP.State(); s != c.state {
				t.Errorf("the queue pair is in %v, want %v", s, c.state)
			}
			h.checkBounds()
			h.bystanderWorks()
			h.checkMemory()
		})
	}
}

// TestRepeatedReadOfLostMemory repeats a READ after the responder has removed the right to read its memory.
func TestRepeatedReadOfLostMemory(t *testing.T) {
	h := newHostile(t)
	defer h.close()
	read := craft{op: roce.RCRDMAReadRequest, to: h.qps[rc].QP, length: 8, va: regionVA(regionReadable),
		rkey: h.key(regionReadable)}
	h.inject(read)
	h.run()
	check(t, h.regions[regionReadable].Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite}))
	read.psn = -1
	h.inject(read)
	h.run()
	want := []string{"RDMA READ response Only +0 (8)", fmt.Sprintf("%v +0", roce.NAKRemoteAccessError)}
	if got := h.heard(); !slices.Equal(got, want) {
		t.Errorf("answers: got %q, want %q", got, want)
	}
	if s := h.qps[rc].QP.State(); s != ib.QPRTS {
		t.Errorf("state: got %v, want %v", s, ib.QPRTS)
	}
	h.bystanderWorks()
	h.checkMemory()
}

// TestErrorDropsReplies takes a queue pair to ERR while a response and an acknowledgement are pending.
func TestErrorDropsReplies(t *testing.T) {
	h := newHostile(t)
	defer h.close()
	qp := h.qps[rc].QP
	qp.exclusively(func(*pass) {
		qp.resp.rcv.Answer(&transport.Answer{Kind: transport.Read, Packets: 1, Domain: qp.resp.domain(),
			Addr: regionVA(regionReadable), Key: h.key(regionReadable), Length: 8})
		qp.resp.rcv.Acknowledge(roce.ACKUnlimited, hostilePSN+1)
		qp.enterError(driver.StateCause{Reason: driver.ByProgram})
	})
	h.run()
	if got := h.heard(); got != nil {
		t.Errorf("answers: got %q, want none", got)
	}
	h.completions()
	h.bystanderWorks()
	h.checkMemory()
}

// TestUnreadableBehindOthers posts a request with unreadable memory behind an unacknowledged request. The sender's
// counts must not include the unsent packets.
func TestUnreadableBehindOthers(t *testing.T) {
	h := newHostile(t)
	defer h.close()
	h.postSend(rc, ib.WRSend, 100)
	v := h.qps[rc]
	wr := ib.SendWR{ID: v.nextID, Opcode: ib.WRSend, SGList: []ib.SGE{
		{Addr: regionVA(regionLocal), Length: 100, LKey: h.key(regionLocal)},
		{Addr: regionVA(regionLocal), Length: 100, LKey: h.key(regionLocal) ^ 1<<20},
	}}
	_, err := v.obj.PostSend(wr)
	check(t, err)
	v.QP.verify(t)
}

// TestFloods sends thousands of packets to queue pairs that do not receive. The device must only drop and count them.
func TestFloods(t *testing.T) {
	const flood = 2000
	for _, c := range []struct {
		name  string
		state ib.QPState
		to    func(h *hostile) craft
		count string
	}{
		{"a queue pair in ERR", ib.QPErr, func(h *hostile) craft { return craft{to: h.qps[rc].QP} }, "drop_wrong_state"},
		{"a queue pair in RESET", ib.QPReset, func(h *hostile) craft { return craft{to: h.qps[rc].QP} }, "drop_wrong_state"},
		{"nobody", ib.QPRTS, func(h *hostile) craft { return craft{num: 0x1234} }, "drop_unknown_qp"},
		{"damaged packets", ib.QPRTS, func(h *hostile) craft { return craft{to: h.qps[rc].QP, damaged: true} }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t)
			defer h.close()
			if c.state != ib.QPRTS {
				check(t, h.qps[rc].obj.Modify(ib.QPAttr{State: c.state}, ib.QPAttrState))
			}
			before := h.dev.Stats()
			for i := range flood {
				p := c.to(h)
				p.op = []roce.Opcode{roce.RCSendOnly, roce.RCRDMAReadRequest, roce.RCAcknowledge, roce.RCRDMAWriteFirst}[i%4]
				h.inject(p)
				if i%100 == 0 {
					h.run()
				}
			}
			h.run()
			if got := h.heard(); len(got) > 0 {
				t.Errorf("the device answers %q", got)
			}
			if c.count != "" {
				if n := h.dev.Stats()[c.count] - before[c.count]; n != flood {
					t.Errorf("%s went up by %d, want %d", c.count, n, flood)
				}
			} else if h.net.LostICRC != flood {
				t.Errorf("%d packets had a wrong ICRC, want %d", h.net.LostICRC, flood)
			}
			h.bystanderWorks()
			h.checkMemory()
		})
	}
}

// TestTruncated injects packets of all opcodes, truncated at each length. They must not change protected memory.
func TestTruncated(t *testing.T) {
	h := newHostile(t)
	defer h.close()
	for op := range 256 {
		c := craft{op: roce.Opcode(op), to: h.qps[rc].QP, pkey: roce.DefaultPKey, psn: 1 << 20, n: 8, qkey: testQKey}
		whole := len(c.make())
		for n := range whole {
			b := c.make()[:n]
			h.injectRaw(addrC, addrB, b, false)
		}
		h.run()
		h.checkBounds()
	}
	if stats := h.dev.Stats(); h.net.LostICRC == 0 || stats["drop_short_headers"] == 0 {
		t.Errorf("nothing was dropped: %d at the ICRC, %v", h.net.LostICRC, stats)
	}
	h.answers = nil
	h.sleep(time.Millisecond)
	h.bystanderWorks()
	h.checkMemory()
}

// TestCheckOrder sends requests with two faults. The first check in the order of IBA 9.7.4.1 determines the answer,
// and the trace names that check.
func TestCheckOrder(t *testing.T) {
	nak := func(s roce.Syndrome) string { return fmt.Sprintf("%v +0", s) }
	const badKey = 0xdead00
	for _, c := range []struct {
		name   string
		noRecv bool
		packet craft
		answer string
		check  string
	}{
		{"a gap, and a middle packet", false, craft{op: roce.RCSendMiddle, psn: 1, n: 4}, nak(roce.NAKPSNSequenceError), "PSN"},
		{"a middle packet, and no receive", true, craft{op: roce.RCSendMiddle, n: 4}, nak(roce.NAKInvalidRequest), "opcode sequence"},
		{"an atomic out of place, and a bad key", false, craft{op: roce.RCFetchAdd, va: 1, rkey: badKey}, nak(roce.NAKInvalidRequest), "opcode"},
		{"no receive, and a bad length", true, craft{op: roce.RCSendFirst, n: 4}, nak(roce.RNRNAK(0)), "resources"},
		{"no receive, and a bad key", true, craft{op: roce.RCRDMAWriteOnlyWithImmediate, n: 4, length: 4, rkey: badKey}, nak(roce.RNRNAK(0)), "resources"},
		{"a bad key, and a bad length", false, craft{op: roce.RCRDMAWriteFirst, n: 4, length: 8, rkey: badKey}, nak(roce.NAKRemoteAccessError), "R_Key"},
		{"a bad length", false, craft{op: roce.RCSendFirst, n: 4}, nak(roce.NAKInvalidRequest), "length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t)
			defer h.close()
			if !c.noRecv {
				for range maxRecvs {
					h.postRecv(rc)
				}
			}
			v := h.qps[rc]
			check(t, h.dev.TraceQP(v.num, true))
			h.dev.workers.wait(time.Minute) // a goroutine may still run the queue pair after TraceQP, and take the packet
			c.packet.to = v.QP
			h.inject(c.packet)
			h.run()
			got := h.heard()
			if len(got) != 1 || got[0] != c.answer && !(strings.Contains(c.answer, "RNR") && strings.Contains(got[0], "RNR")) {
				t.Errorf("the device answers %q, want %q", got, c.answer)
			}
			h.completions()
			tr, err := h.dev.QPTrace(v.num)
			check(t, err)
			for _, e := range tr.Events {
				if e.Event == "refuse" && e.Detail == c.check {
					return
				}
			}
			t.Errorf("trace: got %v, want a packet refused for its %s", tr.Events, c.check)
		})
	}
}
