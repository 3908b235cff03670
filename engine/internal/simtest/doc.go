// Package simtest checks the transport against the guarantees of the specification. It plays random schedules on a
// network, a clock and two devices that are isolated from the rest of the system.
//
// # A schedule
//
// [Run] derives the whole schedule from a service type and a seed:
//
//   - the number of queue pairs between the two hosts, and their attributes (path MTU, first PSNs near the wrap,
//     timers, retry counts, depths);
//   - whether the queue pairs of a host share a receive queue;
//   - the work requests of the consumers in both directions, and their times;
//   - faults in them: a wrong key, a wrong range, a receive that is too short;
//   - the delays of the receives;
//   - other actions of the consumers: drain a send queue, take a queue pair to ERR;
//   - the network: it loses, repeats, reorders, delays and damages packets, refuses to take them, and goes down for a
//     while.
//
// Everything runs on one thread, including callbacks, on a [clock.Virtual] and a [stepnet.Net]. Thus a seed determines
// a run completely, and [Report.Trace] is the same each time. To examine a failure, play its seed again:
//
//	go test ./engine/internal/simtest -run 'TestSchedules/RC' -seed 1234 -v
//
// # The model
//
// After each step, the completions are compared with the guarantees of the specification (model.go). For every service:
//
//   - A work request completes at most once, in the order of posting, with a status that this schedule allows. After
//     the first failure, all work requests are flushed. No work request waits for ever: when no event is left, all are
//     complete.
//   - A receive completes at most once, in the order of posting. The unused receives of a shared receive queue are the
//     last posted ones.
//   - Memory that belongs to no work request is not accessed, and neither is memory that has been given back. As soon
//     as a work request completes, its consumer reuses the memory, and the new content must stay.
//   - The handler of a completion queue is called once for each arming that is followed by a matching completion.
//   - On a perfect network all work requests succeed.
//
// For a reliable connection (IBA 9.7), including an extended one (XRC, IBA A14):
//
//   - An acknowledgement does not cover a READ, atomic, FLUSH or ATOMIC WRITE, unless a response has been sent before.
//   - Messages arrive once, in order and complete. When a work request succeeds, its effect is visible: the data in
//     the peer's memory or in its receive, the result in the local memory. When a receive completes, the data of
//     earlier WRITEs are in memory.
//   - Atomics and ATOMIC WRITE happen at most once. Their results, their sum and the memory show this.
//   - The key of a memory window or a fast registration works until a SEND with invalidate has invalidated it. All
//     data written with the key are in memory by then. Afterwards no request writes there or succeeds with the key.
//   - The executed requests are a prefix of the posted requests: none overtakes another, even if a connection breaks.
//   - When a fenced work request starts, all earlier ones are complete.
//
// For an unreliable connection (IBA 9.8.2): a message arrives completely or not at all. It arrives at most as often as
// the network delivered its last packet, and in order if the network kept the order.
//
// For datagrams (IBA 9.8.3): a datagram arrives at most as often as the network delivered it. It arrives completely,
// with the addresses and the queue pair of its sender.
//
// # One outcome on every path
//
// Between devices of a Fabric, messages take the shortcut. [Travel] plays schedules whose outcome does not depend on
// times, on a perfect network. It plays each schedule on three paths: all messages by the shortcut, all as packets, and
// with a path that changes at random messages. The completions and their order, events, counters, PSNs, states and
// memory must be the same. ofQP and ofCounters document the permitted differences: the number of acknowledgements, and
// the effects of later packets that take a faster path.
//
// # Sensitivity
//
// mutants_test.go breaks the engine on purpose, in one place at a time, and checks that the schedules find each fault.
package simtest
