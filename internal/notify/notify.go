// Package notify is the notification protocol of a completion queue as values: what the driver knows (Arming), and what
// the midlayer does (Notice). Each transition is a function without side effects, which the product applies to a word,
// atomically or under a lock, and which TestExplore applies in every order that threads can.
//
//	consumer --arms--> Arming --a completion comes--> Notice --due--> a thread calls the handler
//	   ^                                                                            |
//	   +------------------ polls, and arms again -----------------------------------+
package notify

// Arming is what a driver is to tell about completions.
type Arming uint8

const (
	Disarmed  Arming = iota
	Solicited        // of solicited ones, and those that have failed
	Next             // of the next one, whatever it is
)

// Request arms: for every completion, or for solicited ones alone, which takes nothing back.
func (a Arming) Request(every bool) Arming {
	switch {
	case every:
		return Next
	case a == Disarmed:
		return Solicited
	}
	return a
}

// Posted says whether a completion is to be told of; solicited ones and failed ones count alike. That is done once for
// each Request.
func (a Arming) Posted(solicited bool) (next Arming, tell bool) {
	if a == Next || a == Solicited && solicited {
		return Disarmed, true
	}
	return a, false
}

// Notice is what of a queue's callbacks is due or running. It serialises the completion handler:
//
//	idle --Completed--> due --Begin--> running --Return--> idle
//	                     ^                |
//	                     |            Completed
//	                     |                v
//	                     +---Return---- again
//
// Beside that it counts asynchronous events that are due or being delivered. A queue that dies has no callback begun
// any more; what would have been is remembered, for the case that its end is refused (Revive).
type Notice uint32

const (
	idle Notice = iota
	due
	running
	again
	handler = 3 // the bits of these

	dead   Notice = 1 << 2
	missed Notice = 1 << 3
	event  Notice = 1 << 4 // one of those that are due
)

// Completed says that a completion is to be told of, and returns whether the handler has to be queued.
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

// Begin says that a thread has taken the handler that was queued, and returns whether it is to call it. Return follows
// in any case.
func (n Notice) Begin() (next Notice, call bool) {
	n += running - due
	if n&dead != 0 {
		return n | missed, false
	}
	return n, true
}

// Return says that the handler has returned, and returns whether it has to be queued again.
func (n Notice) Return() (next Notice, queue bool) {
	if n&handler == again {
		return n - again + due, true
	}
	return n - running, false
}

// Event says that there is an asynchronous event, and returns whether it has to be queued.
func (n Notice) Event() (next Notice, queue bool) {
	if n&dead != 0 {
		return n, false
	}
	return n + event, true
}

// Deliver says that a thread has taken an event, and returns whether it is to be delivered. Delivered follows in any
// case.
func (n Notice) Deliver() (next Notice, call bool) { return n, n&dead == 0 }

// Delivered says that the event function has returned.
func (n Notice) Delivered() (Notice, bool) { return n - event, false }

// Die says that no callback is to begin any more. When Quiet is true, none runs, either.
func (n Notice) Die() (Notice, bool) { return n | dead, false }

// Quiet reports whether no callback is due or running.
func (n Notice) Quiet() bool { return n&handler == idle && n < event }

// Due reports whether a call of the handler is due, also while it runs.
func (n Notice) Due() bool { return n&handler == due || n&handler == again }

// Dead reports whether no callback begins any more.
func (n Notice) Dead() bool { return n&dead != 0 }

// Revive takes Die back, and returns whether the handler has to be queued.
func (n Notice) Revive() (next Notice, queue bool) {
	was := n & missed
	if n &^= dead | missed; was != 0 {
		return n.Completed()
	}
	return n, false
}
