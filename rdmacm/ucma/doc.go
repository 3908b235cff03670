// Package ucma implements the file /dev/infiniband/rdma_cm, through which programs use the connection manager
// (drivers/infiniband/core/ucma.c).
//
// A program writes commands (package ucm), which contain pointers to the buffers for responses. It receives events
// with the command GET_EVENT:
//
//	rdma_resolve_addr ----> Server.Open, File.Write ----> rdmacm.ID.ResolveAddr
//	                                                          |
//	rdma_get_cm_event <---- GET_EVENT <---- queue of events <-+  (File.event)
//
// GET_EVENT never waits in this package. The caller waits with [File.AddWaiter]. Config.Ready maintains a file that
// is readable while there are events, so poll(2), epoll(7) and select(2) work natively.
//
// IDs are small numbers. The package rejects an ID of another file, and never exposes the objects that the numbers
// identify. When librdmacm destroys an ID, it waits until all events that it has received for the ID are
// acknowledged. The file counts these events when it delivers them, and drops undelivered events with the ID.
package ucma
