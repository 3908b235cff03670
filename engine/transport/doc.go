// Package transport implements the protocol of the connected and unconnected services of InfiniBand (IBA volume 1,
// chapter 9) as values. A [Sender] numbers requests, selects the next packet to send, and processes acknowledgements,
// responses and timeouts. A [Receiver] checks the order of arriving requests, answers duplicates, and selects the next
// acknowledgement or response to send. They implement the protocol rules of rxe_req.c, rxe_comp.c and rxe_resp.c of
// Linux, without the other parts of these files.
//
// The inputs are packet fields, and times where a wait begins or may have ended (Arm, Tick, Probe). The package has no
// lock, clock, goroutine, memory region, ring or socket, and no callback. Each method is a function of the value and
// its arguments, and does not sleep. It allocates no memory once the slices of the value have reached their final size.
// The owner must ensure that only one thread at a time uses a value.
//
// # One message
//
//	    consumer's side                                         peer's side
//
//	Push      number a request, give it its PSNs
//	Next      the packet to send now, or none
//	Sent      the packet is sent
//	Advance   all packets up to here are built         Arrive     expected, duplicate, or after a gap
//	              ------- packets ------->             Follows, Fits  sequence of opcodes, lengths
//	                                                   Executed   the request has been executed
//	                                                   Answer     the same, for a request with a response
//	              <--- acknowledgement ---             Ack        the pending acknowledgement
//	Ack, Response  completed requests,          <---   Reply      the pending response
//	               or a failure, or a retransmission
//	Unarmed, Arm   start of a wait
//	Deadline       the time of the next Tick
//
// # General rules
//
// PSNs are compared modulo 2^24 in a half circle (roce.PSN). Lost packets are repaired by go-back-N: after a NAK, a gap
// among the responses, or a timeout, the sender retransmits from the oldest unacknowledged packet on. The receiver
// executes each request only once. A repeated SEND or RDMA WRITE is acknowledged again, a repeated RDMA READ reads the
// memory again, and the result of an atomic is stored for repetitions.
//
// A [Recovery] determines the number of bytes in flight and the timeouts. [AIMD] is one. [Unprobed] wraps one and
// disables its probes.
package transport
