// Package roce is the RoCEv2 wire format: InfiniBand transport packets carried
// in UDP over IPv4 or IPv6. It holds no state, opens no socket and allocates
// nothing; a driver builds on it what sends, receives and recovers.
//
// # A packet
//
// The UDP payload of a RoCEv2 packet (destination port [UDPPort]) is
//
//	+---------+--------------------+---------+---------+--------+
//	| BTH, 12 | extended headers   | payload | pad 0-3 | ICRC 4 |
//	+---------+--------------------+---------+---------+--------+
//
// The opcode in the [BTH] (base transport header) says which extended headers
// follow, in which order, and what the packet means: [Opcode] answers all of
// that from one table. Every header is a byte-slice type with accessors, like
// [RETH] or [AETH]: reading and writing happen in place, in network byte order.
//
// [ParsePacket] checks a received UDP payload and gives a [Packet] with views
// of its headers; a [DropReason] says why a payload was refused. [NewPacket]
// lays out a packet to be sent in the caller's buffer, and [Flow.Seal] ends it
// with the invariant CRC.
//
// # The invariant CRC
//
// The ICRC covers everything that no router changes, the IP and UDP headers
// included. A program on a plain UDP socket knows all of it from the addresses,
// the ports and the length, save the identification of an IPv4 header that
// somebody else wrote. [Flow] holds what is constant per pair of UDP endpoints;
// [Flow.Verify] solves for the identification where it must. [CheckIP] is for
// those who have the whole IP packet, such as a capture.
//
// # Numbers
//
// [PSN] is arithmetic modulo 2^24. [Syndrome], [RNRTimer] and [AckTimeout] are
// the codes in which a responder reports its state and in which both sides say
// how long to wait. [MTU] is the path MTU, [GID] an address, and
// [SourcePortRC] and [SourcePortUD] choose UDP source ports as Linux does.
//
// References to "IBA" are to the InfiniBand Architecture Specification,
// volume 1; RoCEv2 is its annex A17, XRC its annex A14, and FLUSH and ATOMIC
// WRITE come from annex A19.
package roce
