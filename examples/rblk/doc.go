// Package rblk is a block device over RDMA: a Target exports stores, a Disk is a remote store that its users read and
// write as if it were here. It is an upper-level protocol in the sense of package ib, a client that comes and goes with
// devices, and it is the one that keeps its own object through a reset: the Disk stays while the device below it
// disappears and comes back, or while the target's does. Its users see delay, and an I/O error only when the delay has
// been longer than they allowed.
//
// # On the wire
//
// An initiator (the Disk's side) connects an RC queue pair by the connection manager, package rdmacm, and logs in as the
// first thing that it says. The end of the connection is the end of the session; who hears nothing asks the other for a
// sign of life, by an RDMA WRITE of nothing.
//
//	initiator                                   target
//	    | -- REQ {version, depth, max I/O} ----> |
//	    | <- REP, or REJ {why not} ------------- |
//	    | -- SEND login {initiator, epoch} ----> |  ends the initiator's old session, all of it
//	    | <- SEND welcome {size, depth, max I/O} |
//	    |                                        |
//	    | -- SEND request {tag, op, range, key}> |
//	    | <- RDMA READ of the data (write) ----- |
//	    | <- RDMA WRITE of the data (read) ----- |
//	    | <- SEND response {tag, status} ------- |
//
// The tag names the request, its place in the initiator's memory and its place in the target's. There are as many as
// requests may be outstanding, so that neither side ever lacks a receive.
//
// # Why nothing is lost, and nothing applied twice in a way that shows
//
// A request belongs to the Disk, not to the session. When a session is lost its queue pair and its keys are destroyed
// first, so that nothing late can touch the memory; the requests without a response are then held, and posted again in
// their order on the next session. One of them may have been carried out before. That does not show, because a read or a
// write of a fixed range may be repeated, as long as nobody who has been told that it is done has written there since. So
// the target, before it welcomes an initiator again, ends the old session and waits until the store has finished what that
// session had begun. What it began before then precedes every repetition; after it, nothing old comes. The same wait
// keeps a write of an initiator that has died from coming after what the next one writes. Requests that are under way
// at once have no order among them, and somebody who reads a place while it is being written can see it change back.
package rblk
