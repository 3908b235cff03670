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

// Stats are a device's counters under the names that the kernel's rxe gives them in sysfs hw_counters.
func (d *Device) Stats() map[string]uint64 {
	s := make(map[string]uint64, numCounters)
	for i, name := range counterNames {
		s[name] = d.counters[i].n.Load()
	}
	return s
}
