// Package loopback is a driver with its own memory as the network: queue pairs of a device reach only each other. The
// driver needs no threads, timers or sockets, and meets the whole contract of package ib. The package is a template for
// new drivers.
//
// The driver works as follows. The list also states the differences of a driver for real hardware:
//
//   - [New] returns a device that is ready for ib.Core.Register. A real driver starts its hardware first. The loopback
//     device has no Close, because it has nothing to free. A real driver calls its Close after Unregister has returned.
//   - One mutex, Device.mu, protects all queue pairs, receive queues and keys. Each critical section does a bounded
//     amount of work and never blocks. The methods that may not sleep can therefore lock the mutex. A real driver has
//     one mutex for each queue. No mutex may be held while callbacks run, or across Register and Unregister.
//   - PostSend executes the work requests at once, on the caller's thread (send.go): requester and responder are one
//     function. A send waits in two cases only: until the next PostRecv if there is no receive, and until the next
//     Modify if the peer is in INIT. A queue pair may be its own peer and may enter ERR during its own send (QP.busy).
//   - Completed requests end in CQ.post, which calls ib.CQHandle.Completed if the queue is armed. This call may happen
//     inside PostSend and with the lock held, because the midlayer calls the consumer later, from a thread that holds
//     no lock.
//   - Queue pairs use other objects through interfaces where possible (see completionQueue). A driver that embeds the
//     loopback driver can therefore wrap some of the objects.
//
// Each optional feature has its own file: ah.go, mcast.go, srq.go, xrc.go, mw.go, fastreg.go. A driver without a
// feature omits the file.
package loopback
