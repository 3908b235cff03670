// Package poller polls the send queues of programs that post without a call of the service. These are clients over a
// socket (package remote), and unmodified programs without trapped doorbells (package supervisor).
//
// While programs of a user post, one thread per user polls their send queues (uverbs.File.RingPosted) and yields the
// processor in between. If no requests have been posted for a while, it sleeps. A program wakes it by writing to an
// eventfd, after it was notified that the thread sleeps, or by writing to a watched file, which the program does with
// each post.
//
//	           no new requests for linger       nothing posted meanwhile
//	polling ------------------------> leaving --------------------> asleep
//	   ^                                 |                            |
//	   +--------- something posted ------+<---------- bell -----------+
//
// If a doorbell blocks the thread on memory of an unresponsive program, another thread replaces it. The blocked thread
// ends when the doorbell returns.
package poller
