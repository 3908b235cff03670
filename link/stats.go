package link

import "sync/atomic"

// Stats holds the counters of an endpoint since it was opened. Bytes are counted from the BTH to the ICRC.
type Stats struct {
	SentTrains  uint64 `json:"sent_trains"`
	SentPackets uint64 `json:"sent_packets"`
	SentBytes   uint64 `json:"sent_bytes"`
	// SentSingly counts the trains whose packets were passed to the kernel one by one, because the kernel does not
	// segment on their route. SentTrains includes these trains.
	SentSingly uint64 `json:"sent_singly"`

	// Trains that were not sent, by reason: no room in the socket (ErrAgain); no route; too long for the link or the
	// path; forbidden by the host's packet filter; a violated rule of Train; any other reason.
	SendAgain     uint64 `json:"send_again"`
	SendNoRoute   uint64 `json:"send_no_route"`
	SendTooLong   uint64 `json:"send_too_long"`
	SendForbidden uint64 `json:"send_forbidden"`
	SendInvalid   uint64 `json:"send_invalid"`
	SendOther     uint64 `json:"send_other"`
	// SendCutOff counts packets at the end of trains of which the socket accepted only the beginning.
	SendCutOff uint64 `json:"send_cut_off"`
	// SourcePortFallbacks counts the destinations to which trains leave from Port, because their source port is taken
	// or too many source ports are in use.
	SourcePortFallbacks uint64 `json:"source_port_fallbacks"`

	// ReceivedBatches counts the calls of the Receiver. ReceivedPackets and ReceivedBytes count the packets in these
	// calls.
	ReceivedBatches uint64 `json:"received_batches"`
	ReceivedPackets uint64 `json:"received_packets"`
	ReceivedBytes   uint64 `json:"received_bytes"`

	// Dropped packets: with a wrong ICRC; too short for a BTH and an ICRC; without room in the socket.
	ICRCErrors uint64 `json:"icrc_errors"`
	Malformed  uint64 `json:"malformed"`
	Overflows  uint64 `json:"overflows"`
	// Forged counts dropped packets that another process sent from an address of this process.
	Forged uint64 `json:"forged"`
	// ReceiveErrors counts failed system calls.
	ReceiveErrors uint64 `json:"receive_errors"`

	// LinkDown counts sent and received packets while the link of a Faults was down. ShaperOverflows counts packets
	// without room in the queue of a Shape. ShaperLosses counts packets lost by its Loss. ShaperMarked counts packets
	// marked with congestion experienced.
	LinkDown        uint64 `json:"link_down"`
	ShaperOverflows uint64 `json:"shaper_overflows"`
	ShaperLosses    uint64 `json:"shaper_losses"`
	ShaperMarked    uint64 `json:"shaper_marked"`
}

// Add adds the counters of another endpoint.
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

// StatsReader is the interface of endpoints with counters. All endpoints of this module implement it.
type StatsReader interface {
	Stats() Stats
}

// sendCounters holds the counters of sending. Any thread writes them.
type sendCounters struct {
	trains, packets, bytes, singly              atomic.Uint64
	again, noRoute, tooLong, forbidden, invalid atomic.Uint64
	other, cutOff, portFallbacks                atomic.Uint64
}

// recvCounters holds the counters of receiving. Only the receiving thread writes them.
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

// received adds the counters of a receive thread.
func (s *Stats) received(rx *recvCounters) {
	s.ReceivedBatches += rx.batches.Load()
	s.ReceivedPackets += rx.packets.Load()
	s.ReceivedBytes += rx.bytes.Load()
	s.ICRCErrors += rx.icrc.Load()
	s.Malformed += rx.malformed.Load()
	s.ReceiveErrors += rx.errors.Load()
	s.Forged += rx.forged.Load()
}
