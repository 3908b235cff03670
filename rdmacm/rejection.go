package rdmacm

import (
	"net/netip"

	"verbena/rdmacm/msg"
)

// RejectionCause is the reason for which this side rejects the request of a peer. The REJ has the reason "consumer
// reject", and the SIDR REP the status "rejected", for all of them (IBA 12.6.7.2, 12.11.2.1).
type RejectionCause uint8

// The following constants are the causes.
const (
	RejectedByOwner   RejectionCause = iota // Reject was called
	RejectedByError                         // Accept has failed
	RejectedByDestroy                       // the ID of the request was destroyed
	RejectedByRemoval                       // the device of the request was removed
	RejectedByBacklog                       // the backlog of the listener is full
	RejectedByAddress                       // the port has listeners, and none of them listens at the address
	NumRejectionCauses
)

// Rejection is a rejected request.
type Rejection struct {
	Cause RejectionCause
	// Peer is the address of the requester.
	Peer netip.AddrPort
	// Owner is the owner of the listener, or of the ID of the request.
	Owner any
	// Backlog is the backlog of the listener, for RejectedByBacklog.
	Backlog int
}

// OnRejection sets a function that is called with each rejected request, before the peer can receive the answer, if
// Options.Owner was set. It must be called before the first NewID. f must not sleep, nor call the manager.
func (m *Manager) OnRejection(f func(Rejection)) { m.rejected = f }

// reportRejection reports a rejected request of a peer. id is the listener, or the ID of the request.
//
//verbena:held mu
func (m *Manager) reportRejection(id *ID, peer netip.AddrPort, why RejectionCause) {
	if m.rejected == nil || id.opts.Owner == nil {
		return
	}
	x := Rejection{Cause: why, Peer: peer, Owner: id.opts.Owner}
	if why == RejectedByBacklog {
		x.Backlog = id.backlog
	}
	m.rejected(x)
}

// reportNoRoom reports a request for which there is no ID: l is its listener, or nil if no listener of the port has its
// address.
//
//verbena:held mu
func (m *Manager) reportNoRoom(l *ID, service msg.ServiceID, data []byte) {
	h, err := msg.ParseIPHeader(data)
	if err != nil {
		return
	}
	peer := netip.AddrPortFrom(h.Src, h.SrcPort)
	if l != nil {
		if l.pending >= l.backlog {
			m.reportRejection(l, peer, RejectedByBacklog)
		}
		return
	}
	if list := m.listenersOf(service); len(list) > 0 {
		m.reportRejection(list[0], peer, RejectedByAddress)
	}
}
