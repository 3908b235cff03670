package roce

// SRDStatus is the outcome of a request of SRD. The values up to SRDForgotten are also sent in a Flow Refuse packet, as
// the value of its SRDETH.
type SRDStatus uint8

const (
	SRDSuccess      SRDStatus = iota
	SRDBadAddress             // the key does not give the right to the range
	SRDAborted                // the peer's queue pair is in error
	SRDBadDestQPN             // there is no such queue pair
	SRDNotReady               // no receive, after all retransmissions
	SRDBadLength              // the receive is too short
	SRDUnknownPeer            // an RDMA request to a peer without an address handle of the requester
	SRDBadStatus              // the peer could not store the message
	SRDSkipped                // the answer to a Skip whose packet was not executed before; no outcome of a request
	SRDForgotten              // the peer does not know the flow; no outcome of a request
	SRDUnresponsive           // no answer any more; not sent
	SRDUnreachable            // never an answer; not sent
	SRDBadLocal               // the memory of the requester is not accessible; not sent
	numSRDStatuses
)

var srdStatusNames = [numSRDStatuses]string{
	"success", "bad address", "aborted", "bad destination QPN", "not ready", "bad length", "unknown peer", "bad status",
	"skipped", "forgotten", "unresponsive", "unreachable", "bad local memory",
}

func (s SRDStatus) String() string {
	if s < numSRDStatuses {
		return srdStatusNames[s]
	}
	return "undefined"
}
