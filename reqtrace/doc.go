// Package reqtrace records the work requests of a user's programs, and writes them as a trace for Perfetto's viewer
// (package perfetto).
//
// A [Recorder] implements driver.Observer for a service. It copies the events of traced queues into memory that the
// service shares with the client of the trace:
//
//	engine --> driver.Observer --> Recorder --> memory, the latest events ==> client: Write --> file
//
// The memory has a fixed size ([Size]). It holds a table of queues, and a ring of events. When the ring is full, an
// event replaces the oldest one, and [Write] reports the number of lost events. The client converts the events after
// the trace has ended. Recording an event therefore needs no lock, no system call and no memory, and the events
// survive the end of the service.
//
// A trace has only the queues of one user's programs. Consumers without a user context, and the targets of
// XRC, belong to no program, and are not traced.
package reqtrace
