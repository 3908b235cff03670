// Package ucma is the file /dev/infiniband/rdma_cm, by which programs use the connection manager
// (drivers/infiniband/core/ucma.c).
//
// A program writes commands (package ucm), whose answers are stored through pointers in them, and takes events by the
// command GET_EVENT:
//
//	rdma_resolve_addr ----> Server.Open, File.Write ----> rdmacm.ID.ResolveAddr
//	                                                          |
//	rdma_get_cm_event <---- GET_EVENT <---- queue of events <-+  (File.event)
//
// GET_EVENT never waits here. Who answers the program waits by [File.Wait], and tells it by a file that can be read
// while there are events (Config.Ready), so that poll(2), epoll(7) and select(2) work on that natively.
//
// IDs are small numbers. One that belongs to another file is refused; what the numbers stand for never leaves the
// package. librdmacm waits, when it destroys an ID, until as many events were acknowledged as it was given of it: they
// are counted when they are given, and those that were not are dropped with the ID.
package ucma
