package rxe

import (
	"sync/atomic"

	"verbena/driver/rxe/wire"
)

// counter is one of the device's statistics, by the names of the kernel's hw_counters (rxe_hw_counters.c).
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

	// Ours: why a packet that came was dropped, or answered by an error.
	cntMalformed
	cntNoQP
	cntService
	cntPKey
	cntQKey
	cntState
	cntPeer
	cntPortDown
	cntNoRecv
	cntLength
	cntRest
	cntGap
	cntUnknownDup
	cntStaleResp
	cntInvalidReq
	cntAccess
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

	cntMalformed:  "rcvd_malformed_err",   // length, padding, version, or an unknown opcode
	cntNoQP:       "rcvd_no_qp_err",       // for a queue pair that there is not
	cntService:    "rcvd_service_err",     // opcode of another service than the queue pair's
	cntPKey:       "rcvd_pkey_err",        // partition
	cntQKey:       "rcvd_qkey_err",        // of a datagram
	cntState:      "rcvd_state_err",       // for a queue pair that does not receive, or not this
	cntPeer:       "rcvd_peer_err",        // for a connection, but not from its other end
	cntPortDown:   "rcvd_port_down_err",   // while the port is down
	cntNoRecv:     "rcvd_no_recv_err",     // unreliable, and no receive was posted
	cntLength:     "rcvd_length_err",      // datagram longer than the MTU, or than the receive
	cntRest:       "rcvd_rest_err",        // unreliable: the rest of a message of which a part was lost
	cntGap:        "rcvd_after_gap_err",   // behind a lost packet that was asked for already
	cntUnknownDup: "rcvd_unknown_dup_err", // a repeated RDMA READ or atomic that is not remembered
	cntStaleResp:  "rcvd_stale_resp_err",  // answer to what is complete, or was never asked
	cntInvalidReq: "rcvd_invalid_req_err", // request that the queue pair does not allow, or that makes no sense
	cntAccess:     "rcvd_access_err",      // request for memory that its key does not give
}

// wireCounters are ours too: what the endpoints have dropped, and why they could not send.
var wireCounters = map[string]func(s *wire.Stats) uint64{
	"rcvd_icrc_err":      func(s *wire.Stats) uint64 { return s.ICRCErrors },
	"rcvd_overflow_err":  func(s *wire.Stats) uint64 { return s.Overflows }, // no room in the socket
	"rcvd_socket_err":    func(s *wire.Stats) uint64 { return s.ReceiveErrors },
	"send_again":         func(s *wire.Stats) uint64 { return s.SendAgain }, // no room in the socket; tried again
	"send_no_route_err":  func(s *wire.Stats) uint64 { return s.SendNoRoute },
	"send_too_long_err":  func(s *wire.Stats) uint64 { return s.SendTooLong },
	"send_forbidden_err": func(s *wire.Stats) uint64 { return s.SendForbidden },
	"send_other_err":     func(s *wire.Stats) uint64 { return s.SendOther + s.SendInvalid },
	"send_cut_off_err":   func(s *wire.Stats) uint64 { return s.SendCutOff }, // the end of a train
}

// counters are on cache lines of their own, so that threads that count different things do not disturb each
// other. The data path counts packets once per train.
type counters [numCounters]struct {
	n atomic.Uint64
	_ [56]byte
}

func (c *counters) add(i counter, n int) { c[i].n.Add(uint64(n)) }

// violations are the port's counters of what came with a wrong key, as QueryPort reports them. (set_bad_pkey_cntr,
// set_qkey_viol_cntr)
type violations struct{ pkey, qkey atomic.Uint64 }

// violationCount is the value of such a counter, which has 16 bits and stays at its end.
func violationCount(c *atomic.Uint64) uint32 { return uint32(min(c.Load(), 0xffff)) }

// Stats are a device's counters, by the names that files below ports/1/hw_counters have: those of the kernel's rxe, and
// ours, which tell the reasons for which packets were dropped. It may sleep.
func (d *Device) Stats() map[string]uint64 {
	s := make(map[string]uint64, int(numCounters)+len(wireCounters))
	for i, name := range counterNames {
		s[name] = d.counters[i].n.Load()
	}
	w := d.wireStats()
	for name, f := range wireCounters {
		s[name] = f(&w)
	}
	s[counterNames[cntMalformed]] += w.Malformed
	return s
}

// wireStats sums up the endpoints, those too that are gone. It may sleep.
func (d *Device) wireStats() wire.Stats {
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

func statsOf(e wire.Endpoint) wire.Stats {
	if r, ok := e.(wire.StatsReader); ok {
		return r.Stats()
	}
	return wire.Stats{}
}
