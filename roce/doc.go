// Package roce is the RoCEv2 wire format: InfiniBand transport packets carried
// in UDP over IPv4 or IPv6. It holds no state, opens no socket and allocates
// nothing. A driver adds sending, receiving and recovery.
//
// # A packet
//
// The UDP payload of a RoCEv2 packet (destination port [UDPPort]) is
//
//	+---------+--------------------+---------+---------+--------+
//	| BTH, 12 | extended headers   | payload | pad 0-3 | ICRC 4 |
//	+---------+--------------------+---------+---------+--------+
//
// The opcode in the [BTH] (base transport header) determines the operation,
// the extended headers and their order. The methods of [Opcode] look these up
// in one table. Every header is a byte-slice type with accessors, such as
// [RETH] or [AETH], which read and write in place, in network byte order.
//
// [ParsePacket] checks a received UDP payload and returns a [Packet] with views
// of its headers, or a [DropReason]. [NewPacket] lays out a packet in a buffer
// of the caller, and [Flow.Seal] appends the invariant CRC.
//
// # The invariant CRC
//
// The ICRC covers all fields that routers do not change, including those of the
// IP and UDP headers. A program with a plain UDP socket derives them from the
// addresses, the ports and the length, except the identification in the IPv4
// header of a received packet. [Flow] holds the constant part for a pair of UDP
// endpoints; [Flow.Verify] solves for the identification if necessary.
// [CheckIP] checks a whole IP packet, such as one of a capture.
//
// # Numbers
//
// [PSN] provides arithmetic modulo 2^24. [Syndrome] is the code of a responder's
// state; [RNRTimer] and [AckTimeout] are codes of timeouts. [MTU] is the path
// MTU, and [GID] is an address. [SourcePortRC] and [SourcePortUD] choose UDP
// source ports as Linux does.
//
// References to "IBA" are to the InfiniBand Architecture Specification,
// volume 1; RoCEv2 is its annex A17, XRC its annex A14, and FLUSH and ATOMIC
// WRITE come from annex A19.
package roce
