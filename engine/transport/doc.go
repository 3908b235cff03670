// Package transport holds the protocol of the connected and unconnected services of InfiniBand (IBA volume 1, chapter
// 9) as values: a [Sender], which numbers requests, says which packet is to be sent next, and draws conclusions from
// acknowledgements, responses and timeouts; and a [Receiver], which puts requests that arrive into their order, answers
// duplicates, and says which acknowledgement or response is to be sent next. They are the rules of rxe_req.c,
// rxe_comp.c and rxe_resp.c of Linux, and nothing else of those files.
//
// Packet fields go in, results come out; time goes in where a wait begins or may have ended (Arm, Tick, Probe). The
// package has no lock, clock, goroutine, memory region, ring or socket, and no callback: each method is a
// function of the value and its arguments, does not sleep, and allocates nothing once the slices of a value have grown
// to their size. A value is used by one thread at a time, which its owner sees to.
//
// # One message
//
//	    consumer's side                                         peer's side
//
//	Push      number a request, give it its PSNs
//	Next      the packet to send now, or none
//	Sent      it is on its way
//	Advance   all packets up to here are built         Arrive     expected, duplicate, or after a gap
//	              ------- packets ------->             Follows, Fits  sequence of opcodes, lengths
//	                                                   Executed   the request has been carried out
//	                                                   Answer     the same, for one with a response
//	              <--- acknowledgement ---             Ack        the acknowledgement that is due
//	Ack, Response  requests that are complete,  <---   Reply      the response that is due
//	               or a failure, or a retransmission
//	Unarmed, Arm   begin to wait
//	Deadline       when Tick must be called
//
// # Three rules run through all of it
//
// PSNs are compared modulo 2^24 in a half circle (roce.PSN). Loss is repaired by going back: everything from the oldest
// packet without an acknowledgement on is sent again (go-back-N), after a NAK, a gap among the responses, or a timeout.
// A request that has been executed is not executed again: SEND and RDMA WRITE are acknowledged once more, an RDMA READ
// is read once more, and of an atomic the result is remembered.
//
// How many bytes may be in flight, and how long to wait, is a [Recovery]'s decision; [AIMD] is one, and [Unprobed] is another
// one without its probes.
package transport
