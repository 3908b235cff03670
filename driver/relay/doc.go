// Package relay brings the choices of package ib/weak to the programs of user contexts. [New] wraps any [ib.Driver].
// A user context that asks for a weak device (weak.User) gets queues in the layout of the driver, and behind each queue
// an object of a weak device:
//
//	program --> memory --> queue.SendQueue, RecvQueue --> weak --> driver
//	program <-- memory <-- queue.CompletionQueue <------- weak <-- driver
//
// The relay decodes the posted requests and posts them to the weak device. It polls the weak device, and passes the
// completions on to the program's queue. It limits a queue pair to the requested capacities: the surplus entries of the
// ring stay occupied, so the queue of a program that posts more is full.
//
// A program posts receives without a call. The relay looks for them at each doorbell and change of state, and when the
// driver asks for them (ib.DriverQPInit.Refill). It looks at a queue pair in ERR periodically. With a driver without
// ib.Refiller, it looks at all receive queues of the program at each doorbell.
//
// The objects of all other contexts, and of consumers in this process, are those of the wrapped driver.
package relay
