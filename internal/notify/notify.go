// Package notify implements the notification protocol of a completion queue as values. The values are the state of
// the driver (Arming), and of the midlayer (Notice). Each transition is a function without side effects. The
// product applies a transition to a word, atomically or under a lock. TestExplore applies the transitions in each
// possible order of threads.
//
//	consumer --arms--> Arming --a completion comes--> Notice --due--> a thread calls the handler
//	   ^                                                                            |
//	   +------------------ polls, and arms again -----------------------------------+
package notify

// Arming is the set of completions that a driver must report.
type Arming uint8

const (
	disarmed       Arming = iota
	armedSolicited        // solicited and failed completions
	armedNext             // the next completion of any kind
)

// Request arms for every completion, or only for solicited completions. A request for solicited completions does
// not weaken an earlier request.
func (a Arming) Request(every bool) Arming {
	switch {
	case every:
		return armedNext
	case a == disarmed:
		return armedSolicited
	}
	return a
}

// Posted reports whether the driver must report a completion. Failed completions count as solicited. The driver
// reports at most one completion for each Request.
func (a Arming) Posted(solicited bool) (next Arming, tell bool) {
	if a == armedNext || a == armedSolicited && solicited {
		return disarmed, true
	}
	return a, false
}

// Notice is the state of a queue's callbacks. It serialises the completion handler:
//
//	idle --Completed--> due --Begin--> running --Return--> idle
//	                     ^                |
//	                     |            Completed
//	                     |                v
//	                     +---Return---- again
//
// Notice also counts asynchronous events that are due or being delivered. After Die, no callback of the queue
// begins. A suppressed completion handler is remembered, in case the driver refuses the end (Revive).
type Notice uint32

const (
	idle Notice = iota
	due
	running
	again
	handler = 3 // the bits of these states

	dead   Notice = 1 << 2
	missed Notice = 1 << 3
	event  Notice = 1 << 4 // increment for a due event
)

// Completed records a completion to report, and returns whether to queue the handler.
func (n Notice) Completed() (next Notice, queue bool) {
	if n&dead != 0 {
		return n | missed, false
	}
	switch n & handler {
	case idle:
		return n + due, true
	case running:
		return n - running + again, false
	}
	return n, false
}

// BeginHandler records that a thread has dequeued the handler, and returns whether to call the handler. The thread must
// call Return in either case.
func (n Notice) BeginHandler() (next Notice, call bool) {
	n += running - due
	if n&dead != 0 {
		return n | missed, false
	}
	return n, true
}

// EndHandler records the return of the handler, and returns whether to queue the handler again.
func (n Notice) EndHandler() (next Notice, queue bool) {
	if n&handler == again {
		return n - again + due, true
	}
	return n - running, false
}

// QueueEvent records an asynchronous event, and returns whether to queue the event.
func (n Notice) QueueEvent() (next Notice, queue bool) {
	if n&dead != 0 {
		return n, false
	}
	return n + event, true
}

// BeginEvent records that a thread has dequeued an event, and returns whether to deliver the event. The thread must
// call Delivered in either case.
func (n Notice) BeginEvent() (next Notice, call bool) { return n, n&dead == 0 }

// EndEvent records the return of the event function.
func (n Notice) EndEvent() (Notice, bool) { return n - event, false }

// Die prevents further callbacks. Once IsQuiet is true, no callback is running either.
func (n Notice) Die() (Notice, bool) { return n | dead, false }

// IsQuiet reports whether no callback is due or running.
func (n Notice) IsQuiet() bool { return n&handler == idle && n < event }

// Revive reverses Die, and returns whether to queue the handler.
func (n Notice) Revive() (next Notice, queue bool) {
	was := n & missed
	if n &^= dead | missed; was != 0 {
		return n.Completed()
	}
	return n, false
}
