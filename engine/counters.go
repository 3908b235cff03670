package engine

import (
	"sync/atomic"

	"verbena/engine/transport"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

// counter identifies a statistic of the device. The names are those of the kernel's hw_counters (rxe_hw_counters.c).
type counter uint8

const (
	cntSentPkts counter = iota
	cntRcvdPkts
	cntDupReq
	cntOutOfSeqReq
	cntRcvRNR
	cntSndRNR
	cntRcvSeqErr
	cntAckDeferred
	cntRetryExceeded
	cntRNRRetryExceeded
	cntCompRetry
	cntSendErr
	cntLinkDowned
	cntRDMASend
	cntRDMARecv

	cntSentShortcut // included in cntSentPkts
	cntSentProbe    // included in cntSentPkts

	// Packets that were dropped without an answer, by reason. The kernel does not count these.
	cntDropShort
	cntDropVersion
	cntDropOpcode
	cntDropHeaders
	cntDropUnaligned
	cntDropPad
	cntDropPayload
	cntDropNobody
	cntDropService
	cntDropPKey
	cntDropState
	cntDropSource
	cntDropQKey
	cntDropEcho
	cntDropResponse
	cntDropDuplicate
	cntDropUnreliable
	cntDropGap
	cntDropPortDown
	cntDropStalled

	// The following counters exist only with queue.Traits.MessageCounters. Bytes of packets include headers; the others
	// are of payload.
	cntTxBytes
	cntRxBytes
	cntSendWRs
	cntSendBytes
	cntRecvWRs
	cntRecvBytes
	cntReadWRs
	cntReadBytes
	cntReadErrs
	cntReadRespBytes
	cntWriteWRs
	cntWriteBytes
	cntWriteErrs
	cntWriteRecvBytes
	cntRetransPkts
	cntRetransBytes
	cntRetransTimeouts
	cntUnresponsive
	numCounters
)

var counterNames = [numCounters]string{
	cntSentPkts:         "sent_pkts",
	cntRcvdPkts:         "rcvd_pkts",
	cntDupReq:           "duplicate_request",
	cntOutOfSeqReq:      "out_of_seq_request",
	cntRcvRNR:           "rcvd_rnr_err",
	cntSndRNR:           "send_rnr_err",
	cntRcvSeqErr:        "rcvd_seq_err",
	cntAckDeferred:      "ack_deferred",
	cntRetryExceeded:    "retry_exceeded_err",
	cntRNRRetryExceeded: "retry_rnr_exceeded_err",
	cntCompRetry:        "completer_retry_err",
	cntSendErr:          "send_err",
	cntLinkDowned:       "link_downed",
	cntRDMASend:         "rdma_sends",
	cntRDMARecv:         "rdma_recvs",
	cntSentShortcut:     "sent_shortcut_pkts",       // to a device of the same Fabric, without the network
	cntSentProbe:        "sent_probe_pkts",          // retransmitted before the timeout; see Config.NoProbe
	cntDropShort:        "drop_short",               // shorter than a BTH and an ICRC
	cntDropVersion:      "drop_wrong_version",       // unknown version of the transport header
	cntDropOpcode:       "drop_unknown_opcode",      //
	cntDropHeaders:      "drop_short_headers",       // shorter than the headers of the opcode
	cntDropUnaligned:    "drop_unaligned",           // the length is not a multiple of 4
	cntDropPad:          "drop_wrong_padding",       // more padding than payload
	cntDropPayload:      "drop_unexpected_payload",  // the opcode has no payload
	cntDropNobody:       "drop_unknown_qp",          // no queue pair has the number
	cntDropService:      "drop_wrong_service",       // the opcode belongs to another service than the queue pair
	cntDropPKey:         "drop_wrong_pkey",          //
	cntDropState:        "drop_wrong_state",         // the queue pair does not receive
	cntDropSource:       "drop_wrong_source",        // not an address of the connection
	cntDropQKey:         "drop_wrong_qkey",          //
	cntDropEcho:         "drop_own_multicast",       // the sender gets no copy
	cntDropResponse:     "drop_stale_response",      // no request in flight has this response
	cntDropDuplicate:    "drop_forgotten_duplicate", // a READ or atomic that is no longer remembered
	cntDropUnreliable:   "drop_unreliable",          // a datagram or a UC packet that could not be received
	cntDropGap:          "drop_after_gap",           // follows a lost packet that was requested again
	cntDropPortDown:     "drop_port_down",           // the port is down
	cntDropStalled:      "drop_stalled",             // the program's memory does not answer, and too many packets wait

	// The names are those of the kernel's efa (EFA_DEFINE_PORT_STATS).
	cntTxBytes:         "tx_bytes",
	cntRxBytes:         "rx_bytes",
	cntSendWRs:         "send_wrs",
	cntSendBytes:       "send_bytes",
	cntRecvWRs:         "recv_wrs",
	cntRecvBytes:       "recv_bytes",
	cntReadWRs:         "rdma_read_wrs",
	cntReadBytes:       "rdma_read_bytes",
	cntReadErrs:        "rdma_read_wr_err",
	cntReadRespBytes:   "rdma_read_resp_bytes",
	cntWriteWRs:        "rdma_write_wrs",
	cntWriteBytes:      "rdma_write_bytes",
	cntWriteErrs:       "rdma_write_wr_err",
	cntWriteRecvBytes:  "rdma_write_recv_bytes",
	cntRetransPkts:     "retrans_pkts",
	cntRetransBytes:    "retrans_bytes",
	cntRetransTimeouts: "retrans_timeout_events",
	cntUnresponsive:    "unresponsive_remote_events",
}

// malformedCounters maps the drop reasons of package roce to counters.
var malformedCounters = [roce.NumDropReasons]counter{
	roce.DropTooShort: cntDropShort, roce.DropVersion: cntDropVersion, roce.DropOpcode: cntDropOpcode,
	roce.DropHeaders: cntDropHeaders, roce.DropUnaligned: cntDropUnaligned, roce.DropPad: cntDropPad,
	roce.DropPayload: cntDropPayload,
}

// malformed returns the counter of a packet that roce.ParseBody refuses with err.
func malformed(err error) counter {
	why, _ := err.(roce.DropReason)
	return malformedCounters[why]
}

// counters holds each counter on a cache line of its own, so that threads with different counters do not disturb each
// other. The data path counts packets once per train.
type counters [numCounters]struct {
	n atomic.Uint64
	_ [56]byte
}

func (c *counters) add(i counter, n int) { c[i].n.Add(uint64(n)) }

// requestCounters are the counters of send work requests: the successful ones, their bytes, and the failed ones.
var requestCounters = [...]struct{ wrs, bytes, errs counter }{
	transport.Send:  {cntSendWRs, cntSendBytes, numCounters},
	transport.Write: {cntWriteWRs, cntWriteBytes, cntWriteErrs},
	transport.Read:  {cntReadWRs, cntReadBytes, cntReadErrs},
}

// countRequest counts the end of a send work request, with n bytes.
func (d *Device) countRequest(kind transport.Kind, n int, status uapi.WCStatus) {
	if !d.traits.MessageCounters || int(kind) >= len(requestCounters) {
		return
	}
	switch c := requestCounters[kind]; {
	case status == uapi.WCSuccess:
		d.counters.add(c.wrs, 1)
		d.counters.add(c.bytes, n)
	case c.errs != numCounters && status != uapi.WCWRFlushErr:
		d.counters.add(c.errs, 1)
	}
}

// countMessage counts bytes of payload of other messages.
func (d *Device) countMessage(bytes counter, n int) {
	if d.traits.MessageCounters {
		d.counters.add(bytes, n)
	}
}

// countTrain counts the bytes of a train, whose spans may have gaps between them.
func (d *Device) countTrain(bytes counter, t *train) {
	if !d.traits.MessageCounters {
		return
	}
	n := 0
	for _, k := range t.spans {
		n += k.end - k.start
	}
	d.counters.add(bytes, n)
}

// countSent counts packets that are sent to the network.
func (d *Device) countSent(t *link.Train, packets int) {
	d.counters.add(cntSentPkts, packets)
	d.countMessage(cntTxBytes, len(t.Buf))
}

// violations returns a number of packets with a wrong key for QueryPort. The number has 16 bits, and saturates.
// (set_bad_pkey_cntr, set_qkey_viol_cntr)
func (c *counters) violations(i counter) uint32 { return uint32(min(c[i].n.Load(), 0xffff)) }

// wireCounters maps the names of drops and send errors to the statistics of the endpoints.
var wireCounters = map[string]func(s *link.Stats) uint64{
	"drop_icrc":          func(s *link.Stats) uint64 { return s.ICRCErrors },
	"drop_forged":        func(s *link.Stats) uint64 { return s.Forged },    // own source address, foreign socket
	"drop_overflow":      func(s *link.Stats) uint64 { return s.Overflows }, // no room in the socket
	"recv_socket_err":    func(s *link.Stats) uint64 { return s.ReceiveErrors },
	"send_again":         func(s *link.Stats) uint64 { return s.SendAgain }, // no room in the socket; sent later
	"send_no_route_err":  func(s *link.Stats) uint64 { return s.SendNoRoute },
	"send_too_long_err":  func(s *link.Stats) uint64 { return s.SendTooLong },
	"send_forbidden_err": func(s *link.Stats) uint64 { return s.SendForbidden },
	"send_other_err":     func(s *link.Stats) uint64 { return s.SendOther + s.SendInvalid },
	"send_cut_off_err":   func(s *link.Stats) uint64 { return s.SendCutOff }, // the rest of a train
	"drop_link_down":     func(s *link.Stats) uint64 { return s.LinkDown },   // in either direction
	"drop_link_queue":    func(s *link.Stats) uint64 { return s.ShaperOverflows },
	"drop_link_loss":     func(s *link.Stats) uint64 { return s.ShaperLosses },
	"ecn_marked_pkts":    func(s *link.Stats) uint64 { return s.ShaperMarked },
}

// Stats returns the device's counters under the names of the files below ports/1/hw_counters. The names are those of
// the kernel's rxe, with queue.Traits.MessageCounters also those of its efa, and Verbena's own. drop_* counts packets
// that were dropped without an answer. Stats may sleep.
func (d *Device) Stats() map[string]uint64 {
	s := make(map[string]uint64, int(numCounters)+len(wireCounters))
	for i, name := range counterNames {
		if i < int(cntTxBytes) || d.traits.MessageCounters {
			s[name] = d.counters[i].n.Load()
		}
	}
	w := d.wireStats()
	for name, f := range wireCounters {
		s[name] = f(&w)
	}
	s[counterNames[cntDropShort]] += w.Malformed
	if d.traits.MessageCounters {
		s["tx_pkts"], s["rx_pkts"] = s[counterNames[cntSentPkts]], s[counterNames[cntRcvdPkts]]
		s["rx_drops"] = w.ICRCErrors + w.Forged + w.Overflows
		for _, name := range counterNames[cntDropShort:cntTxBytes] {
			s["rx_drops"] += s[name]
		}
	}
	return s
}

// Stats implements uverbs.Counters.
func (o ops) Stats() map[string]uint64 { return o.dev.Stats() }

// wireStats returns the sums of all endpoints, including the closed ones. It may sleep.
func (d *Device) wireStats() link.Stats {
	d.changes.Lock()
	defer d.changes.Unlock()
	sum := d.changes.gone
	for _, e := range d.changes.ends {
		if w := e.wire.Load(); w != nil {
			sum.Add(statsOf(w.Endpoint))
		}
	}
	return sum
}

func statsOf(e link.Endpoint) link.Stats {
	if r, ok := e.(link.StatsReader); ok {
		return r.Stats()
	}
	return link.Stats{}
}
