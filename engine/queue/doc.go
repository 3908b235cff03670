// Package queue has the queues of an engine in decoded form: work requests, completions, and the interfaces through
// which the engine reads and writes them. It knows no layout of queues in memory.
//
// A [Layout] is the form in which a kind of adapter shares its queues with user processes (driver/rxe/layout). It
// decodes requests and encodes completions. Consumers in this process use [NewSend], [NewReceive] and [NewCompletion],
// whose elements are the decoded values themselves.
//
//	program --> memory --> Layout --+
//	                                +--> SendQueue.Fetch --> engine --> CompletionQueue.Push --> ...
//	consumer in this process -------+
//
// A queue has one producer and one consumer. For work queues the engine is the consumer:
//
//	            Push              Fetch, Take              Complete
//	free slot --------> posted ----------------> taken ---------------> free slot
//
// The queues have no locks. Calls of the producer's methods are serialised by the caller, and so are calls of the
// consumer's methods. No method but Free may sleep.
package queue
