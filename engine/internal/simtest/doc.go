// Package simtest checks the transport against the promises of the specification, by playing random schedules on a
// network, a clock and two devices that nothing outside has an influence on.
//
// # A schedule
//
// [Run] makes everything out of a service type and a seed: how many queue pairs connect the two hosts and with which
// attributes (path MTU, first PSNs near the wrap, timers, retry counts, depths), and whether those of a host share a
// receive queue; what their consumers post in both directions, and when; which of that is wrong (a key, a range, a receive
// that is too short); how late the receives are posted; what the consumers do meanwhile (drain a send queue, take a queue pair to ERR); and what the network does: it
// loses, repeats, reorders, delays and damages packets, refuses to take them, and goes down for a while.
//
// All of it happens on one thread, callbacks included, on a [clock.Virtual] and a [stepnet.Net]. So one seed is one run,
// to the last packet: [Report.Trace] is the same each time, and a failure is looked into by playing its seed again:
//
//	go test ./engine/internal/simtest -run 'TestSchedules/RC' -seed 1234 -v
//
// # The model
//
// After each step the completions are held against what the specification promises (model.go). Of every service:
//
//   - A work request completes at most once, in the order of posting, with a status that this schedule allows; after the
//     first failure everything is flushed. Nothing waits for ever: when nothing can happen any more all are complete.
//   - A receive completes at most once, in the order of posting. What nobody takes from a shared receive queue is what
//     was posted last.
//   - Memory that no work request names is not touched, and none is that has been given back: as soon as a work request
//     completes its consumer uses the memory for something else, and that must stay.
//   - The handler of a completion queue is called once each time it is armed and what it waits for comes.
//   - On a network that does nothing wrong everything succeeds.
//
// Of a reliable connection (IBA 9.7), also an extended one (XRC, IBA A14):
//
//   - An acknowledgement stands for no READ, atomic, FLUSH or ATOMIC WRITE, unless a response to it has been sent before.
//   - Messages arrive once, in order, whole. When a work request succeeds its effect is there: the data in the peer's
//     memory or in its receive, the result here. When a receive completes, what was written before the message is there.
//   - Atomics and ATOMIC WRITE happen at most once, which their results, the sum and the memory tell.
//   - The key of a memory window or a fast registration works until a SEND with invalidate has taken it back, and never
//     again: by then all that was written by it is there, and from then on nobody writes there, nor succeeds with the key.
//   - What happened is the beginning of what was posted: nothing overtakes, also where a connection broke.
//   - A fenced work request finds those before it complete.
//
// Of an unreliable connection (IBA 9.8.2): a message arrives whole or not at all; each at most as often as the network
// repeated its last packet; in order where the network kept the order.
//
// Of datagrams (IBA 9.8.3): each arrives at most as often as the network delivered it, whole, with the addresses and the
// queue pair that it came from.
//
// # One outcome by every way
//
// Between devices of a Fabric messages take the shortcut. [Travel] plays a schedule whose outcome does not depend on times, on a network
// that does nothing wrong: all by the shortcut, all as packets, and with the way changing at random messages. Completions
// and their order, events, counters, PSNs, states and memory must be the same. What may differ is said where it is left out: how many
// acknowledgements there are, and what happens when later packets take a faster way.
//
// # Does it find anything?
//
// mutants_test.go breaks the engine on purpose, in one place at a time, and has the schedules find each of them.
package simtest
