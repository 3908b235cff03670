package rxe

import "sync/atomic"

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

	// Why a packet was dropped without an answer; the kernel does not count these.
	cntDropMalformed
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
	cntDropMalformed:    "drop_malformed",           // lengths, version, opcode
	cntDropNobody:       "drop_unknown_qp",          // no queue pair has the number
	cntDropService:      "drop_wrong_service",       // the opcode is of another service than the queue pair
	cntDropPKey:         "drop_wrong_pkey",          //
	cntDropState:        "drop_wrong_state",         // the queue pair does not receive
	cntDropSource:       "drop_wrong_source",        // not an address of the connection
	cntDropQKey:         "drop_wrong_qkey",          //
	cntDropEcho:         "drop_own_multicast",       // who sends to a group gets no copy
	cntDropResponse:     "drop_stale_response",      // to nothing that is outstanding
	cntDropDuplicate:    "drop_forgotten_duplicate", // of a READ or atomic of which nothing is known any more
	cntDropUnreliable:   "drop_unreliable",          // a datagram, or a packet of a message on UC, that could not be taken
}

// counters are on cache lines of their own, so that threads that count different things do not disturb each
// other. The data path counts packets once per train.
type counters [numCounters]struct {
	n atomic.Uint64
	_ [56]byte
}

func (c *counters) add(i counter, n int) { c[i].n.Add(uint64(n)) }

// violations is what QueryPort reports of packets with a wrong key: 16 bits, which stay at their end.
// (set_bad_pkey_cntr, set_qkey_viol_cntr)
func (c *counters) violations(i counter) uint32 { return uint32(min(c[i].n.Load(), 0xffff)) }

// Stats are a device's counters under the names that the kernel's rxe gives them in sysfs hw_counters, and drop_* for
// what was dropped without an answer. What came with a wrong ICRC is in the statistics of its endpoint.
func (d *Device) Stats() map[string]uint64 {
	s := make(map[string]uint64, numCounters)
	for i, name := range counterNames {
		s[name] = d.counters[i].n.Load()
	}
	return s
}
