package link

import "sync/atomic"

// Stats counts what an endpoint did since it was opened. Bytes are those from the BTH to the ICRC.
type Stats struct {
	SentTrains  uint64 `json:"sent_trains"`
	SentPackets uint64 `json:"sent_packets"`
	SentBytes   uint64 `json:"sent_bytes"`
	// SentSingly counts the trains whose packets were handed to the kernel one by one because it does not
	// segment on their route. They are in SentTrains too.
	SentSingly uint64 `json:"sent_singly"`

	// Trains that were not sent, by reason: no room in the socket (ErrAgain); no route; longer than the link or
	// the path takes; forbidden by the host's packet filter; a broken rule of Train; anything else.
	SendAgain     uint64 `json:"send_again"`
	SendNoRoute   uint64 `json:"send_no_route"`
	SendTooLong   uint64 `json:"send_too_long"`
	SendForbidden uint64 `json:"send_forbidden"`
	SendInvalid   uint64 `json:"send_invalid"`
	SendOther     uint64 `json:"send_other"`
	// SendCutOff counts the packets at the end of a train of which the socket took only the beginning.
	SendCutOff uint64 `json:"send_cut_off"`
	// SourcePortFallbacks counts the destinations to which trains leave from Port, since the source port that they
	// should have is taken, or too many are in use.
	SourcePortFallbacks uint64 `json:"source_port_fallbacks"`

	// ReceivedBatches counts the calls of the Receiver; packets and bytes are those that it got.
	ReceivedBatches uint64 `json:"received_batches"`
	ReceivedPackets uint64 `json:"received_packets"`
	ReceivedBytes   uint64 `json:"received_bytes"`

	// Packets that were dropped: the ICRC is wrong; too short for a BTH and an ICRC; the socket had no room.
	ICRCErrors uint64 `json:"icrc_errors"`
	Malformed  uint64 `json:"malformed"`
	Overflows  uint64 `json:"overflows"`
	// Forged counts the packets that were dropped since another process sent them from an address of this process.
	Forged uint64 `json:"forged"`
	// ReceiveErrors counts failed calls of the kernel.
	ReceiveErrors uint64 `json:"receive_errors"`

	// LinkDown counts the packets that were to be sent, or came, while the link of a Faults was down; ShaperOverflows those
	// that had no room in the queue of a Shape, ShaperLosses those lost by its Loss, and ShaperMarked those marked with
	// congestion experienced.
	LinkDown        uint64 `json:"link_down"`
	ShaperOverflows uint64 `json:"shaper_overflows"`
	ShaperLosses    uint64 `json:"shaper_losses"`
	ShaperMarked    uint64 `json:"shaper_marked"`
}

// Add adds another endpoint's.
func (s *Stats) Add(o Stats) {
	s.SentTrains += o.SentTrains
	s.SentPackets += o.SentPackets
	s.SentBytes += o.SentBytes
	s.SentSingly += o.SentSingly
	s.SendAgain += o.SendAgain
	s.SendNoRoute += o.SendNoRoute
	s.SendTooLong += o.SendTooLong
	s.SendForbidden += o.SendForbidden
	s.SendInvalid += o.SendInvalid
	s.SendOther += o.SendOther
	s.SendCutOff += o.SendCutOff
	s.SourcePortFallbacks += o.SourcePortFallbacks
	s.ReceivedBatches += o.ReceivedBatches
	s.ReceivedPackets += o.ReceivedPackets
	s.ReceivedBytes += o.ReceivedBytes
	s.ICRCErrors += o.ICRCErrors
	s.Malformed += o.Malformed
	s.Overflows += o.Overflows
	s.Forged += o.Forged
	s.ReceiveErrors += o.ReceiveErrors
	s.LinkDown += o.LinkDown
	s.ShaperOverflows += o.ShaperOverflows
	s.ShaperLosses += o.ShaperLosses
	s.ShaperMarked += o.ShaperMarked
}

// StatsReader is implemented by every Endpoint of this module.
type StatsReader interface {
	Stats() Stats
}

// sendCounters are written by any thread.
type sendCounters struct {
	trains, packets, bytes, singly              atomic.Uint64
	again, noRoute, tooLong, forbidden, invalid atomic.Uint64
	other, cutOff, portFallbacks                atomic.Uint64
}

// recvCounters are written by the receive thread alone.
type recvCounters struct {
	batches, packets, bytes atomic.Uint64
	icrc, malformed, errors atomic.Uint64
	forged                  atomic.Uint64
}

func (s *Stats) read(tx *sendCounters, rx *recvCounters) {
	s.SentTrains = tx.trains.Load()
	s.SentPackets = tx.packets.Load()
	s.SentBytes = tx.bytes.Load()
	s.SentSingly = tx.singly.Load()
	s.SendAgain = tx.again.Load()
	s.SendNoRoute = tx.noRoute.Load()
	s.SendTooLong = tx.tooLong.Load()
	s.SendForbidden = tx.forbidden.Load()
	s.SendInvalid = tx.invalid.Load()
	s.SendOther = tx.other.Load()
	s.SendCutOff = tx.cutOff.Load()
	s.SourcePortFallbacks = tx.portFallbacks.Load()
	s.received(rx)
}

// received adds what a receive thread has counted.
func (s *Stats) received(rx *recvCounters) {
	s.ReceivedBatches += rx.batches.Load()
	s.ReceivedPackets += rx.packets.Load()
	s.ReceivedBytes += rx.bytes.Load()
	s.ICRCErrors += rx.icrc.Load()
	s.Malformed += rx.malformed.Load()
	s.ReceiveErrors += rx.errors.Load()
	s.Forged += rx.forged.Load()
}
