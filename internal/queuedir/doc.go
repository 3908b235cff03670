// Package queuedir lists the queues of the queue pairs of a program, in the memory that the program shares with its
// service. When the service has died, [Abandon] finds the queues by this list, and completes outstanding requests.
//
// A directory consists of pages:
//
//	page  0  magic; offset of the next page, 0 for none
//	     16  entry 0, entry 1, ... up to the end of the page: live, number, then offset, mask, log2 of the slot's size
//	         of send, receive, send completion and receive completion queue
//
// The service writes the directory and never reads it. Abandon trusts the file, including the directory, no more than
// the service does. It checks offsets and sizes against the size of the file, and the number of queue pairs and work
// requests against the memory of the file.
package queuedir
