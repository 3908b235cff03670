// Package poller polls the send queues of programs that post without a call of the service. Such programs are clients
// over a socket (package remote), and unmodified programs without trapped doorbells (package supervisor).
//
// While programs of a user post, one thread per user polls their send queues (uverbs.File.RingPosted). If the thread
// finds no new requests, it continues to poll for up to linger, and yields the processor between polls. Unmodified
// programs may spin without yielding. Beside them the thread continues only where that has found requests before
// (sched.Spin). Otherwise it sleeps at once. A program wakes the thread in one of two ways. The program writes to an
// eventfd after a notification that the thread sleeps, or it writes to a watched file with each post.
//
//	           no new requests                  no new requests
//	polling ------------------------> leaving --------------------> asleep
//	   ^                                 |                            |
//	   +--------- new requests ----------+<-------- doorbell ---------+
//
// A doorbell may block the thread on the memory of an unresponsive program. In this case another thread replaces it.
// The blocked thread ends when the doorbell returns.
package poller
