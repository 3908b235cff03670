// Package link carries RoCEv2 packets between the addresses of a device and the rest of the network.
//
// A [Network] opens an [Endpoint] for each local address. What is sent is a [Train]: consecutive packets to one
// destination in one buffer, the shape that UDP segmentation offload takes. What arrives is handed to a
// [Receiver] in batches, on the endpoint's own thread, which therefore runs the protocol to completion.
//
// What is sent to an address of this host is in its socket before the call that sends it returns. A thread that has the
// turn of that endpoint ([Taker]) receives it itself, and wakes no other.
//
// The ICRC covers the IP header, which only this package knows. So it is computed here on sending and checked
// here on receipt: a Train has room for it, and a Receiver never sees a packet whose ICRC was wrong.
//
// # The networks
//
//	Faults      in front of another network: rules that lose, repeat, damage, delay and reorder
//	UDP         the host's network, through unprivileged UDP sockets
//	simnet.Net  a network in memory, for tests in virtual time (package simnet)
//
// Package netdev, beside them, finds the host's interfaces and their addresses, and watches them.
//
// [Taps] show what passes to whoever makes a capture of it.
//
// # The IPv4 identification
//
// A UDP socket cannot say which identification its packets shall have, and not see that of those it receives, but
// the ICRC covers it. What Linux sends is predictable where don't fragment is set and the socket is not connected:
// 0, and counted up from 0 within a batch that segmentation offload cuts. So a Train is sealed for the way in which
// it is going to be sent, and sealed again where the kernel refuses to cut it. On receipt the identification is
// solved for ([verbena/roce.Flow.Verify]) and then judged: one that its sender is unlikely to have used is taken
// for damage. IPv6 has none of this.
//
// # Source ports and groups
//
// Everything arrives at port 4791, but leaves from the port that the train names, since routers spread flows by it. A
// plain socket sends from one port, so an endpoint has a socket for each port in use, up to a limit, opened by the
// first train from there. A port that is taken costs nothing but entropy: the train leaves from 4791, and is counted.
//
// A multicast group ([Multicaster]) has a socket of its own in each endpoint that joined. One thread of the endpoint
// receives for all its groups. The kernel loops packets to a group back to all members on this host, the sender too.
//
// # Loss
//
// Like the network itself, an Endpoint promises nothing: the transport above recovers from loss. What an Endpoint
// does know to be lost, and why, is in its [Stats].
package link
