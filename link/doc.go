// Package link carries RoCEv2 packets between the addresses of a device and the rest of the network.
//
// A [Network] opens an [Endpoint] for each local address. A [Train] is the unit of sending: consecutive packets to one
// destination in one buffer, the format of UDP segmentation offload. A [Receiver] gets the received packets in batches,
// on the thread of the endpoint. The Receiver therefore runs the protocol to completion.
//
// A packet to an address of this host is in the destination's socket before the sending call returns. A thread that
// holds the receive token of the destination ([Taker]) receives the packet itself, and wakes no other thread.
//
// The ICRC covers the IP header, which only this package knows. Therefore this package computes the ICRC on sending and
// checks it on receipt. A Train has room for the ICRC. A Receiver never gets a packet with a wrong ICRC.
//
// # The networks
//
//	Faults      in front of another network: rules that lose, repeat, damage, delay and reorder
//	UDP         the host's network, through unprivileged UDP sockets
//	simnet.Net  a network in memory, for tests in virtual time (package simnet)
//
// Package netdev finds the host's interfaces and their addresses, and watches them.
//
// [Taps] pass copies of the packets to captures.
//
// # The IPv4 identification
//
// A UDP socket cannot set the identification of its packets, and does not report that of received packets, but the ICRC
// covers the identification. The identifications that Linux sends are predictable if "don't fragment" is set and the
// socket is not connected: 0, and counting up from 0 within a batch that segmentation offload splits. Therefore a Train
// is sealed for the intended method of sending, and sealed again if the kernel refuses to segment it. On receipt,
// [verbena/roce.Flow.Verify] computes the identification from the ICRC. If the sender is unlikely to have used this
// identification, the packet counts as damaged. IPv6 has no identification.
//
// # Source ports and groups
//
// All packets arrive at port 4791. They leave from the source port of the train, since routers spread flows by source
// port. A plain socket sends from one port. Therefore an endpoint has a socket for each source port in use, up to a
// limit. The first train from a port opens its socket. If another socket has the port, the train leaves from 4791 and
// is counted. The only cost is entropy.
//
// An endpoint that joins a multicast group ([Multicaster]) has a separate socket for the group. One thread of the
// endpoint receives for all its groups. The kernel loops packets to a group back to all members on this host, including
// the sender.
//
// # Loss
//
// Like the network, an Endpoint guarantees no delivery: the transport above recovers from loss. [Stats] counts the
// losses known to an Endpoint, by reason.
package link
