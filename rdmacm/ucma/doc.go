// Package ucma implements the file /dev/infiniband/rdma_cm, through which programs use the connection manager
// (drivers/infiniband/core/ucma.c).
//
// A program writes commands (package ucm), which contain pointers to the buffers for responses, and receives events
// with the command GET_EVENT:
//
//	rdma_resolve_addr ----> Server.Open, File.Write ----> rdmacm.ID.ResolveAddr
//	                                                          |
//	rdma_get_cm_event <---- GET_EVENT <---- queue of events <-+  (File.event)
//
// GET_EVENT never waits here. The caller waits with [File.AddWaiter]. Config.Ready maintains a file that is readable
// while there are events, so poll(2), epoll(7) and select(2) work natively.
//
// IDs are small numbers. An ID of another file is rejected; the objects behind the numbers never leave the package.
// When librdmacm destroys an ID, it waits until all events that it has received for the ID are acknowledged. These
// events are counted when they are delivered; undelivered ones are dropped with the ID.
package ucma
