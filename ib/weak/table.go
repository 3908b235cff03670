package weak

// Choice is a freedom of a device that a weak device uses.
type Choice uint8

// The choices. Choices describes them.
const (
	LateCompletion Choice = iota
	MissedCompletion
	CrossOrder
	LateFlush
	PoisonedFields
	SplitKeys
	NewKeys
	ExactRoom
	EarlyNumbers
	LateEvent
	LateSource
	LateTarget
	LateRead
	SlowMethods
	numChoices
)

// Row describes a choice.
type Row struct {
	Choice Choice
	// Name identifies the choice on command lines.
	Name string
	// Does is the behaviour of the device: a predicate without its subject.
	Does string
	// Permitted names the clause of the specification or the manual page that permits the behaviour.
	Permitted string
	// Breaks is the misuse that the choice exposes.
	Breaks string
}

// Choices is the table of all choices, in order. A [Set] selects rows.
var Choices = [numChoices]Row{
	{
		LateCompletion, "late-completion",
		"delays each completion and its notification, and returns one completion by a poll",
		"ibv_poll_cq(3): a poll returns the completions that are in the queue; no time is promised. ib_req_notify_cq: a handler may find the queue empty",
		"polls a fixed number of times; takes an empty poll for an idle device; takes a full array for granted",
	},
	{
		MissedCompletion, "missed-completion",
		"delays each completion; some come between the last poll and ReqNotify, and are not notified of",
		"ib_req_notify_cq: a completion that is in the queue when it is armed raises no call; IB_CQ_REPORT_MISSED_EVENTS tells of it",
		"arms a queue that it has polled empty, and neither polls again nor asks what it has missed",
	},
	{
		CrossOrder, "cross-order",
		"returns completions of different queues in any order; the order within a send or receive queue is kept",
		"IBA 10.8.3: the order of completions is that of the work requests of one queue, and of no other",
		"takes the completion of another queue pair, or of the peer's answer, as proof of an earlier request",
	},
	{
		LateFlush, "late-flush",
		"reports flushed work requests some polls after Modify has returned",
		"IBA 10.3.1: a queue pair in the error state completes what is outstanding, in time",
		"frees the memory of work requests when Modify to the error state returns",
	},
	{
		PoisonedFields, "poisoned-fields",
		"fills the fields of a failed completion that are undefined with a pattern; in a successful one the immediate data and the " +
			"invalidated key, unless the flags name them",
		"ibv_poll_cq(3): of a failed one wr_id, status, qp_num and vendor_err alone are valid (and, in package ib, the opcode of a flushed " +
			"one); imm_data and invalidated_rkey are valid with IBV_WC_WITH_IMM and IBV_WC_WITH_INV",
		"reads the length, the opcode or the immediate data before the status; takes immediate data of 0 for a message without any",
	},
	{
		SplitKeys, "split-keys",
		"gives regions a local key that differs from the remote key, and is no remote key",
		"ibv_reg_mr(3): the local key is for the scatter list of work requests, the remote key for peers",
		"names local memory by the remote key, or sends the local key to the peer",
	},
	{
		NewKeys, "new-keys",
		"gives a region new keys with each reregistration, and ends the former ones",
		"IBA 11.2.8.5: the call returns the local and the remote key; MR.Rereg: the keys may be others afterwards",
		"goes on with the keys of before a Rereg, or does not send the new one to the peer",
	},
	{
		ExactRoom, "exact-room",
		"grants the capacities of a queue pair that were asked for, and no more; a work request takes its place until its completion, " +
			"or one of a later request of the queue, has been polled",
		"ibv_create_qp(3): the granted values are at least those asked for; IBA 10.8.6: unsignaled work requests are outstanding until a later one completes",
		"posts more than it has asked for; signals no request; counts a request as done when the peer has answered",
	},
	{
		EarlyNumbers, "early-numbers",
		"gives a new queue pair the number of one that was destroyed, on drivers that can (ib.NumberReuser)",
		"IBA 10.2.4: the number identifies a queue pair while it exists",
		"keeps state of a destroyed queue pair under its number",
	},
	{
		LateEvent, "late-event",
		"reports an event of a queue pair 6 to 13 ms after it has happened, at the latest when Modify to RESET returns",
		"IBA 11.6.3: events are asynchronous; ib_qp.event_handler: no time is promised, nor an order with completions",
		"destroys a queue pair with a shared receive queue without waiting for EventQPLastWQEReached; takes the completions for the event",
	},
	{
		LateSource, "late-source",
		"reads the memory of SENDs, WRITEs, READs and atomics when they begin, some steps after the post",
		"ibv_post_send(3): a buffer can only be reused safely when the completion has been retrieved",
		"changes, or frees, the memory of a request before its completion; takes a post for a delivery",
	},
	{
		LateTarget, "late-target",
		"fills the memory of a receive when its completion is polled, if the peer of the queue pair has no rights to it",
		"ibv_reg_mr(3), ordering semantics: data are guaranteed present only once a completing event has occurred",
		"looks at the memory of a receive, or at the sender's completion, instead of the completion of the receive",
	},
	{
		LateRead, "late-read",
		"fills the target of a READ or atomic when its completion is polled (of an unsignaled one, that of a later request), or a fenced request " +
			"begins, if the peer of the queue pair has no rights to the target",
		"ibv_reg_mr(3), ordering semantics; IBA 10.8.3.3: a request that follows a READ waits for its data only with a fence",
		"uses the data of a READ after the peer's answer to a later message; sends the data on without a fence",
	},
	{
		SlowMethods, "slow-methods",
		"takes 2 ms for one in eight of the calls that query the device, or make, change or destroy a queue pair, a completion queue or a region",
		"the contract of package ib: such a method may sleep, and for as long as it takes",
		"gives a call of another thread a fixed time; does not wait for the thread before it lets go of the device",
	},
}

// Set is a set of choices.
type Set uint32

// All has every choice.
const All = Set(1)<<numChoices - 1

// Of returns the set that contains the given choices.
func Of(choices ...Choice) (s Set) {
	for _, c := range choices {
		s |= 1 << c
	}
	return s
}

// Has reports whether a choice is in the set.
func (s Set) Has(c Choice) bool { return s&(1<<c) != 0 }

// draw returns a pseudo-random number below n for a choice, for one work request of one queue pair.
func (c Config) draw(choice Choice, qp, request uint64, n uint64) int {
	x := c.Seed ^ uint64(choice)<<56 ^ qp<<32 ^ request
	for range 2 { // these steps are the finaliser of a 64-bit hash
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return int(x % n)
}
