// Package loopback is a driver whose network is its own memory: queue pairs of a device reach each other and nothing
// else. It needs no threads, timers or sockets, keeps the whole contract of package ib, and is written to be copied by
// the author of the next driver.
//
// How it works, and what to change in a driver for something real:
//
//   - [New] makes a device that is ready for ib.Core.Register. A real driver starts its hardware first. It needs no
//     Close, since there is nothing to free; a real one has one, to be called when Unregister has returned.
//   - One mutex, Device.mu, guards all queue pairs, receive queues and keys. Each of its critical sections does a bounded
//     amount of work and waits for nobody, so that the methods that may not sleep can take it. A real driver has one for
//     each queue; what matters is that none is held while callbacks run, or across Register and Unregister.
//   - PostSend executes the work requests at once, in the poster's thread (send.go): requester and responder are one
//     function. Only a send that finds no receive waits, for the next PostRecv, and one whose peer is in INIT, for the
//     next Modify. A queue pair may be its own peer: it then goes to ERR in the middle of its send (QP.busy).
//   - What is done ends in CQ.post, which calls ib.CQHandle.Completed when the queue is armed. That may happen inside of
//     PostSend and under the lock, since the midlayer calls the consumer later, from a thread that holds nothing.
//   - Queue pairs know the other objects by interface where they can (see completer), so that a driver that embeds this
//     one can wrap some of them.
//
// Abilities are in a file each, so that what a driver lacks is left out by leaving out a file: ah.go, mcast.go, srq.go,
// xrc.go, mw.go, fastreg.go.
package loopback
