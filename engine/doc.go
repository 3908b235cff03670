// Package engine implements software devices. A [Device] speaks the InfiniBand transport protocol (IBA volume 1,
// chapter 9) over UDP, all of it in this process. The package mirrors drivers/infiniband/sw/rxe; the table below maps
// the files. Where the kernel's rxe departs from the specification, the engine follows the specification.
//
// The engine knows no layout of queues in memory. It reads decoded requests and writes completions through package
// engine/queue. A driver is a personality of the engine: its [Config.Layout] is the form of the queues that programs
// share with the driver. Package driver/rxe is such a driver.
//
// # From a work request to a completion
//
//	consumer         queue pair A               wire or Fabric        queue pair B       consumer
//
//	send ring -----> requester --> egress --------> train ----------> responder -------> memory
//	                     ^                                             |     |
//	                     | window                                      |     +---------> completion ring
//	completion <---- completer <------ ACK, READ response <-- egress <-+     ^
//	ring                 |                                                   +---------- receive ring
//	                     +--> memory (RDMA READ)
//
// Package transport is the protocol itself, chapter 9 of the specification, as values. The values know PSNs, requests
// in flight, duplicates, acknowledgements, retransmissions and timeouts, and nothing of memory, rings, locks or
// clocks. Around them, the requester (req.go) takes work requests out of the send ring, and builds the packets that
// transport's Sender asks for. It adds the packets to trains (train.go), which the network takes at once. The
// responder (resp.go) executes the requests that transport's Receiver accepts, stores the data, completes receives,
// and answers. The completer (comp.go) stores responses, and completes the work requests that the Sender reports as
// done.
//
// # Threads
//
// The engine has no threads. A thread with an event for a queue pair begins a [pass], which runs the queue pairs of a
// run queue. The event is a doorbell or PostSend on the caller's thread, packets on the thread of an endpoint, or a
// timer. pass.go and run.go have the path of a message from top to bottom. At most one thread runs a queue pair at a
// time, and no thread waits for that: an event for a running queue pair is left to its thread. So a message takes
// three runs: of the sender, of the receiver, and of the sender again for the acknowledgement. No lock is held while
// payload is copied, packets are sent or completions are reported. A train for another device of the same [Fabric] is
// not sent: it is an event of the peer, which the same pass runs next. A message between two programs of one service
// therefore costs no change of thread and no system call. A goroutine finishes a long pass.
//
// # Memory
//
// A key refers to rights to memory (key.go), which do not change. Binding, registration and invalidation replace the
// rights of the key, and wait until no thread uses the old ones.
//
// A queue is shared with a user process, in the form of the layout, or holds decoded values in the memory of this
// process. Both are a queue.SendQueue, RecvQueue or CompletionQueue. A work request is copied out of a shared queue
// once, decoded by the layout, then checked (req.go). The engine holds no pointer to registered memory. Package umem
// copies in and out, one call for a train rather than for a packet. The data path allocates no memory.
//
// When the service dies, the layout's package completes the work requests of its programs with errors (driver/orphan).
//
// # Files
//
//	device.go   Device, its attributes, user contexts      rxe.c, rxe_verbs.c, rxe_param.h
//	addressing.go  state that follows the interface     core/roce_gid_mgmt.c, cache.c; rxe_net.c
//	hardware.go the adapter, which resets, hangs and dies  (pci_driver)
//	gid.go      GID and P_Key tables
//	fabric.go   devices that reach each other in memory    (loopback in rxe_net.c)
//	queue/      queues in decoded form                     rxe_queue.h
//	queue.go    receives of consumers; the list of a program's queues
//	wqe.go      work requests: kinds, description          struct rxe_send_wqe
//	cq.go       completion queues                          rxe_cq.c
//	key.go      rights of keys, and their end              rxe_lookup_mw
//	mr.go       domains, regions, atomics                  rxe_mr.c
//	fastreg.go  regions of work requests, invalidation     rxe_mr.c
//	mw.go       memory windows                             rxe_mw.c
//	flush.go    FLUSH, ATOMIC WRITE                        in rxe_req.c, rxe_resp.c
//	srd.go, srd_resp.go  scalable reliable datagrams (EFA)
//	av.go       address vectors and handles                rxe_av.c
//	gsi.go      general services
//	mcast.go    multicast groups                           rxe_mcast.c
//	xrc.go      extended reliable connections
//	srq.go      shared receive queues                      rxe_srq.c
//	table.go    numbers of objects                         rxe_pool.c
//	qp.go       queue pairs                                rxe_qp.c
//	modify.go   their attributes and states                rxe_qp.c
//	life.go     stages in the end of a queue pair
//	transport/  the rules of chapter 9                     rxe_req.c, rxe_comp.c, rxe_resp.c
//	req.go      requester                                  the rest of rxe_req.c
//	comp.go     completer                                  the rest of rxe_comp.c
//	resp.go     responder                                  the rest of rxe_resp.c
//	recv.go     packets from the network                   rxe_recv.c
//	train.go    packets to the network or the Fabric       rxe_net.c
//	copy.go     copies of payload, to and from trains      rxe_mr.c, lookup_mr
//	pass.go     threads: run queue, events, tasks          rxe_task.c
//	run.go      one run of a queue pair                    rxe_recv.c, rxe_net.c
//	timer.go    the timer of a queue pair
//	stall.go    memory that does not answer
//	panic.go    devices after a panic
//	trace.go    the latest protocol events of a queue pair
//	counters.go statistics                                 rxe_hw_counters.c
package engine
