// Package poller looks at the send queues of programs that post without a call of the service: those that have come by a socket (package
// remote), and unmodified programs whose doorbells are not trapped (package supervisor).
//
// While programs of a user post, one thread for all of the user's looks at their send queues (uverbs.File.RingPosted), and yields the processor
// in between. When nothing has been posted for a time it sleeps until a program rings: writes to an eventfd, since it has been told that the
// thread is asleep; or writes to a file that is watched, which it does with each post, told or not.
//
//	           found nothing for linger        nothing posted meanwhile
//	polling ------------------------> leaving --------------------> asleep
//	   ^                                 |                            |
//	   +--------- something posted ------+<---------- bell -----------+
//
// A thread that a doorbell stops, in memory of a program that does not answer, is replaced; it comes back to nothing but its end.
package poller
