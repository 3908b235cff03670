// Package roce implements the RoCEv2 wire format. RoCEv2 packets are InfiniBand transport packets in UDP over IPv4 or
// IPv6. The package has no state and opens no sockets. Only its texts and errors allocate memory. A driver adds
// sending, receiving and loss recovery.
//
// # A packet
//
// The UDP payload of a RoCEv2 packet (destination port [UDPPort]) is
//
//	+---------+--------------------+---------+---------+--------+
//	| BTH, 12 | extended headers   | payload | pad 0-3 | ICRC 4 |
//	+---------+--------------------+---------+---------+--------+
//
// The opcode in the [BTH] (base transport header) determines the operation, the extended headers and their order. The
// methods of [Opcode] look up these properties in one table. Every header, such as [RETH] or [AETH], is a byte-slice
// type with accessors. The accessors read and write in place, in network byte order.
//
// [ParsePacket] checks a received UDP payload. ParsePacket returns a [Packet] with views of its headers, or a
// [DropReason]. [NewPacket] lays out a packet in a buffer of the caller. [Flow.Seal] appends the invariant CRC.
//
// # The invariant CRC
//
// The ICRC covers all fields that routers do not change, including fields of the IP and UDP headers. A program with a
// plain UDP socket derives these fields from the addresses, the ports and the length. The only exception is the
// identification in the IPv4 header of a received packet. [Flow] contains the constant part for a pair of UDP
// endpoints. [Flow.Verify] computes the identification if necessary. [CheckIP] checks a whole IP packet, for example
// from a capture.
//
// # Numbers
//
// [PSN] provides arithmetic modulo 2^24. [Syndrome] is the code of an acknowledgement. [RNRTimer] and [AckTimeout] are
// codes of timeouts. [MTU] is the path MTU, and [GID] is an address. [SourcePortRC] and [SourcePortUD] choose UDP
// source ports in the same way as Linux.
//
// "IBA" refers to the InfiniBand Architecture Specification, volume 1. RoCEv2 is its annex A17, and XRC is its annex
// A14. FLUSH and ATOMIC WRITE are defined in annex A19.
package roce
