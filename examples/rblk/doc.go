// Package rblk is a block device over RDMA: a Target exports stores, and a Disk is a remote store that its users
// read and write like a local one. Package rblk is an upper-level protocol in the sense of package ib: a client
// that follows devices. The Disk continues after resets of its own device and of the target's device. Users of the
// disk experience a delay, and an I/O error only if the delay exceeds DiskConfig.Patience.
//
// # On the wire
//
// An initiator (the Disk's side) connects an RC queue pair with the connection manager, package rdmacm, and logs in
// with its first message. The session ends with the connection. A side that has received no message for a while
// probes the other side by an RDMA WRITE of zero bytes.
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
// The tag identifies the request, its memory at the initiator and its memory at the target. Each request that may
// be outstanding has one tag, so both sides always have enough receives.
//
// # Why no data is lost, and repetitions have no effect
//
// A request belongs to the Disk, not to the session. When a session is lost, its queue pair and its keys are
// destroyed first, so late packets cannot access the memory. The requests without a response are then held, and
// posted again in order on the next session. A held request may have been executed before. Repeating a read or a
// write of a fixed range has no effect, unless another user has written there after the first execution was
// reported. Therefore, before the target welcomes an initiator again, it ends the old session and waits until the
// store has finished the operations of that session. The finished operations precede every repetition, and no older
// operations follow. The same wait prevents a write of a dead initiator from overwriting data of the next one.
// Concurrent requests are not ordered. A reader of a range that is being written may therefore read old data again
// after new data.
package rblk
