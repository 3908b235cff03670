package weak

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

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
	PoisonedTarget
	LastCallback
	WriteOrder
	SplitAtomic
	ReadOrder
	ReadLimit
	StrictPeer
	FailedRequest
	FailedCall
	FailedDevice
	FailedPost
	SameNumbers
	RelaxedOrder
	LateWrite
	OutOfOrder
	LimitsEFA
	LimitsMLX5
	LimitsBNXT
	PacketFault
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
		"delays each completion and its notification, some until up to 64 further requests were posted; returns one completion " +
			"in most polls, and all of them in some",
		"ibv_poll_cq(3): a poll returns the completions that are in the queue, and no time is guaranteed. " +
			"ib_req_notify_cq: a handler may find the queue empty",
		"polls a fixed number of times; treats an empty poll as an idle device; expects a full array, or never expects one",
	},
	{
		MissedCompletion, "missed-completion",
		"delays each completion; some arrive between the last poll and ReqNotify, and are not reported",
		"ib_req_notify_cq: a completion that is in the queue when the queue is armed causes no call; " +
			"IB_CQ_REPORT_MISSED_EVENTS reports it",
		"arms an empty queue, and neither polls again nor uses NotifyReportMissed",
	},
	{
		CrossOrder, "cross-order",
		"returns completions of different queues in any order; the order within a send or receive queue is preserved",
		"IBA 10.8.3: completions are in the order of the work requests of one queue only",
		"treats the completion of another queue pair, or of the peer's response, as proof of an earlier request",
	},
	{
		LateFlush, "late-flush",
		"reports flushed work requests some polls after Modify has returned",
		"IBA 10.3.1: a queue pair in the error state completes the outstanding requests after some time",
		"frees the memory of work requests when Modify to the error state returns",
	},
	{
		PoisonedFields, "poisoned-fields",
		"fills the undefined fields of a failed completion with a pattern, some with an opcode of the other queue; in a " +
			"successful completion it fills the immediate data and the invalidated key, unless the flags name these " +
			"fields, and the length of a SEND or WRITE",
		"ibv_poll_cq(3): in a failed completion only wr_id, status, qp_num and vendor_err are valid (in package ib " +
			"also the opcode of a flushed request, but not for programs); imm_data and invalidated_rkey are valid with IBV_WC_WITH_IMM and " +
			"IBV_WC_WITH_INV",
		"reads the length, the opcode or the immediate data before the status; treats immediate data of 0 as a " +
			"message without immediate data",
	},
	{
		SplitKeys, "split-keys",
		"assigns regions a local key that differs from the remote key and is not a valid remote key",
		"ibv_reg_mr(3): the local key is for the scatter list of work requests, the remote key for peers",
		"names local memory by the remote key, or sends the local key to the peer",
	},
	{
		NewKeys, "new-keys",
		"assigns a region new keys with each reregistration, and invalidates the former keys; a recovered device assigns " +
			"other keys than the device before the reset",
		"IBA 11.2.8.5: the call returns the local and the remote key; MR.Rereg: the keys may change",
		"continues to use the keys from before a Rereg or a reset, or does not send the new key to the peer",
	},
	{
		ExactRoom, "exact-room",
		"grants exactly the requested capacities of a queue pair or completion queue; a work request occupies its entry " +
			"until its completion, or the completion of a later request of the queue, has been polled",
		"ibv_create_qp(3): the granted values are at least the requested values; IBA 10.8.6: unsignaled work " +
			"requests are outstanding until a later request completes",
		"posts more requests than the requested capacity; signals no request; counts a request as done when the peer " +
			"has responded",
	},
	{
		EarlyNumbers, "early-numbers",
		"assigns a new queue pair the number of a destroyed queue pair, if the driver supports this (ib.NumberReuser)",
		"IBA 10.2.4: the number identifies a queue pair while it exists",
		"keeps state of a destroyed queue pair under its number",
	},
	{
		LateEvent, "late-event",
		"reports an event of a queue pair at once, which may be before its completions, or 6 to 13 ms late, but at the latest " +
			"when Modify to RESET returns; in SQD it changes no attribute before EventSQDrained",
		"IBA 11.6.3: events are asynchronous; ib_qp.event_handler: neither a time nor an order with completions is " +
			"guaranteed; IBA 10.3.1.5: attributes change when the send queue is drained",
		"destroys a queue pair with a shared receive queue without waiting for EventQPLastWQEReached; treats the " +
			"completions as the event; changes attributes in SQD without waiting for EventSQDrained",
	},
	{
		LateSource, "late-source",
		"reads the memory of SENDs, WRITEs, READs and atomics when their execution begins, some steps after the post, " +
			"and of some up to 64 requests later",
		"ibv_post_send(3): a buffer can only be reused safely when the completion has been retrieved; IBA o9-20: requests are " +
			"ordered only within a queue pair",
		"changes, or frees, the memory of a request before its completion; treats a post as a delivery, or a message of one " +
			"queue pair as proof of a request on another",
	},
	{
		LateTarget, "late-target",
		"fills the memory of a receive when its completion is polled, if the peer of the queue pair has no rights to " +
			"this memory",
		"ibv_reg_mr(3), ordering semantics: data are guaranteed to be present only after a completing event",
		"reads the memory of a receive before the completion of the receive, or after the sender's completion",
	},
	{
		LateRead, "late-read",
		"fills the target of a READ or atomic when its completion is polled or a fenced request begins, if the peer " +
			"of the queue pair has no rights to the target; for an unsignaled request the completion of a later request " +
			"counts",
		"ibv_reg_mr(3), ordering semantics; IBA 10.8.3.3: a request that follows a READ waits for its data only with a fence",
		"uses the data of a READ after the peer's response to a later message; sends the data on without a fence",
	},
	{
		SlowMethods, "slow-methods",
		"delays one in eight of the calls that query the device, or create, change or destroy a queue pair, a " +
			"completion queue or a region, by 2 ms",
		"the contract of package ib: such a method may sleep, for an unlimited time",
		"limits the duration of another thread's call; releases the device before the thread has returned",
	},
	{
		PoisonedTarget, "poisoned-target",
		"fills the memory of a receive with a pattern from the post until its completion is polled, if the peer of the " +
			"queue pair has no rights to this memory; bytes without received data get their former values back",
		"ibv_post_recv(3): a buffer can only be used safely when the completion has been retrieved",
		"posts a receive again before it has used the data of the last message; keeps other data in the memory",
	},
	{
		LastCallback, "last-callback",
		"calls the handler of an armed completion queue, and the functions of pending events, when Destroy or the end of " +
			"the event function begins",
		"ib_destroy_cq, ib_unregister_event_handler: callbacks end when the call returns, not before. ib_req_notify_cq: a " +
			"handler may find the queue empty",
		"frees the state of a callback before Destroy; holds a lock across Destroy that the callback takes",
	},
	{
		WriteOrder, "write-order",
		"divides some WRITEs in the middle, after a short first part or before a short last part; writes either part first, " +
			"and the other part some steps later",
		"ibv_reg_mr(3), ordering semantics: data are guaranteed to be present only after a completing event",
		"polls a byte of a WRITE's target, and treats it as proof of the other bytes",
	},
	{
		SplitAtomic, "split-atomic",
		"stores the results of some atomic operations, and reports their completions, some steps after it has read the " +
			"word; for other operations of the device the result is stored at once",
		"ibv_query_device(3), IBV_ATOMIC_HCA; IBA 9.4.5: atomic operations are atomic among the queue pairs of one " +
			"device, not with respect to the processor",
		"changes a word by the processor while a peer's atomic operation on the word may be in progress",
	},
	{
		ReadOrder, "read-order",
		"executes some READs again after a later SEND or WRITE without a fence, some of them up to 64 requests later, and " +
			"before it reports the completion of the READ; in the meantime, requests whose completions were not polled occupy the send queue",
		"IBA 10.8.3.3: a request that follows a READ is ordered after it only with a fence; IBA 9.4.4: a responder " +
			"executes a duplicate READ again",
		"sends its reply behind a READ without a fence; changes the memory that the peer READs when it receives this reply",
	},
	{
		ReadLimit, "read-limit",
		"fails a READ or atomic operation with a remote invalid request error if more of them are in progress than the peer " +
			"on the same device has responder resources, and the queue pair's own limit is higher",
		"IBA 9.4.4, 9.7.4.1.5: a responder may refuse a request that exceeds its resources with NAK invalid request",
		"keeps more READs in flight than the peer's MaxDestRdAtomic; does not negotiate the limit",
	},
	{
		StrictPeer, "strict-peer",
		"fails the sends of a connection on the device if the first PSN is not the one that the peer expects, or if a message " +
			"is longer than the path MTU of a peer whose path MTU differs",
		"IBA 9.7.1.1, 9.7.4.1.1: a responder drops or refuses requests with an unexpected PSN; IBA 9.7.5.2.8: it refuses packets " +
			"of another length",
		"does not exchange the PSN or the MTU; connects only one side again",
	},
	{
		FailedRequest, "failed-request",
		"fails one or two sends with a legal status, so that the queue pair enters ERR or SQE, and reports flushed requests " +
			"up to 10 ms late",
		"ibv_poll_cq(3): each request may fail; IBA 10.3.1: a failed send moves the queue pair to ERR, or for UD and UC to SQE",
		"leaves a queue pair in SQE; releases a resource twice, or keeps it, after a failure; uses other fields of a failed " +
			"completion",
	},
	{
		FailedCall, "failed-call",
		"fails one of the first calls that create an object or connect a queue pair, with ENOMEM",
		"the contract of package ib: ENOMEM means that a resource is exhausted",
		"does not destroy its other objects when a call fails",
	},
	{
		FailedDevice, "failed-device",
		"reports EventDeviceFatal after one of the posts, and enters the error state",
		"IBA 11.6.3.2; the contract of package ib, point 6: a device may fail at any time",
		"posts flushed receives again without end; does not destroy its objects on a device in error",
	},
	{
		FailedPost, "failed-post",
		"refuses one of the work requests with ENOMEM, although its queue is not full",
		"the contract of package ib: ENOMEM means a full queue or a limit; ibv_post_send(3): a post may fail, and the requests " +
			"before the failed one are posted",
		"releases the resources of a request that was not posted twice; waits for its completion",
	},
	{
		SameNumbers, "same-numbers",
		"assigns a queue pair a number that does not depend on random numbers, so that the queue pairs of two devices with equal " +
			"histories have equal numbers",
		"IBA 10.2.4: the number identifies a queue pair within one channel adapter",
		"finds a queue pair, or a peer, of several devices by its number alone",
	},
	{
		RelaxedOrder, "relaxed-order",
		"stores the data of WRITEs to regions with relaxed ordering in any order, of some after their completion; a later " +
			"request of the connection other than a WRITE, and each read of the device, stores the data first",
		"ibv_reg_mr(3): IBV_ACCESS_RELAXED_ORDERING permits the system to reorder accesses to the region",
		"polls the memory of a WRITE as proof of an earlier WRITE, or treats its completion as proof that the peer sees the " +
			"data, although the region has relaxed ordering",
	},
	{
		LateWrite, "late-write",
		"completes some WRITEs before it stores their data; a later request of the connection other than a WRITE, and each read " +
			"of the device, stores the data first",
		"IBA 9.5: a later SEND, immediate or atomic of the connection proves that the data are in memory; IBA A19: FLUSH is " +
			"for this purpose",
		"treats the completion of a WRITE, or a message of another connection, as proof that the peer sees the data",
	},
	{
		OutOfOrder, "ooo",
		"stores the data of WRITEs of a connection in any order; a later request of the connection other than a WRITE, and each " +
			"read of the device, stores the data first",
		"ConnectX-7 and later with out-of-order placement; ibv_query_qp_data_in_order(3) says whether the data are in order",
		"polls the memory of a WRITE as proof of an earlier WRITE, on an adapter that does not preserve their order",
	},
	{
		LimitsEFA, "limits:efa",
		"refuses a queue pair with more than 2 elements of a send, or 32 bytes inline",
		"ibv_query_device(3): it may not be possible to use the maximum values; " +
			"the EFA ABI (efa_io_defs.h) has 2 buffers and 32 bytes inline in an entry of 64 bytes; libfabric #11944",
		"uses the capacities of another adapter without a smaller second attempt",
	},
	{
		LimitsMLX5, "limits:mlx5",
		"refuses a queue pair with more than 30 elements of a send, 988 bytes inline (UD: 512), or 16 outstanding READs",
		"ibv_query_device(3): it may not be possible to use the maximum values; " +
			"ibv_devinfo of a ConnectX-5 in Open MPI #6137; the inline data of a ConnectX-4 in libfabric #3790",
		"keeps more READs in flight than the device has resources; " + "uses the capacities of another adapter without a smaller second attempt",
	},
	{
		LimitsBNXT, "limits:bnxt",
		"refuses a queue pair with more than 6 elements of a send, 96 bytes inline, or 126 outstanding READs",
		"ibv_query_device(3): it may not be possible to use the maximum values; " +
			"BNXT_STATIC_MAX_SGE and BNXT_QPLIB_MAX_OUT_RD_ATOM of the kernel's bnxt_re; an entry of 6 elements has 96 bytes",
		"keeps more READs in flight than the device has resources; " + "uses the capacities of another adapter without a smaller second attempt",
	},
	{
		PacketFault, "packet-fault",
		"drops, repeats, damages, delays or reorders a packet, or answers a message with receiver not ready, by a random " +
			"decision of a fault rule (verbena fault add) or of the shape of the link",
		"IBA 9.8.2, 9.8.3: an unreliable service may lose messages; IBA 9.7.6.1.3, 9.9.2: a reliable service may need several " +
			"retries, and fails after the last one",
		"treats the completion of an unreliable request as its delivery; limits the time of a request below that of its retries",
	},
}

// Set is a set of choices.
type Set uint64

// InProcess is the set of choices for consumers in this process alone. Package driver/relay applies the other choices
// to programs.
const InProcess = Set(1)<<EarlyNumbers | 1<<LateTarget | 1<<LateRead | 1<<PoisonedTarget | 1<<LastCallback |
	1<<SplitAtomic | 1<<FailedDevice | 1<<FailedPost

// ByRules is the set of the choices that fault rules and the shape of a link make, for a log of decisions. A weak
// device does not make them.
const ByRules = Set(1) << PacketFault

// OptIn is the set of the choices that imitate an adapter, and of LateWrite, which the tests of rdma-core do not
// expect. A consumer that is correct on each common adapter may fail with them.
const OptIn = Set(1)<<LateWrite | 1<<OutOfOrder | 1<<LimitsEFA | 1<<LimitsMLX5 | 1<<LimitsBNXT

// All has every choice, except Faults, ByRules and OptIn.
const All = (Set(1)<<numChoices - 1) &^ (Faults | ByRules | OptIn)

// Of returns the set that contains the given choices.
func Of(choices ...Choice) (s Set) {
	for _, c := range choices {
		s |= 1 << c
	}
	return s
}

// AllChoices is the name that ParseForPrograms accepts for the choices of All that programs meet.
const AllChoices = "all"

// ParseForPrograms returns the set of the choices with the given names, or 0 without names. A name after a minus sign
// removes a choice; if it is the first name, the other names of AllChoices remain. ParseForPrograms returns EINVAL for
// an unknown name, for a choice that programs do not meet, and for names that leave no choice.
func ParseForPrograms(names []string) (s Set, err error) {
	if len(names) > 0 && strings.HasPrefix(names[0], "-") {
		names = append([]string{AllChoices}, names...)
	}
	for _, name := range names {
		if name == AllChoices {
			s |= All &^ InProcess
			continue
		}
		name, removed := strings.CutPrefix(name, "-")
		i := slices.IndexFunc(Choices[:], func(r Row) bool { return r.Name == name })
		switch {
		case i < 0:
			return 0, fmt.Errorf("no choice of weak devices has the name %q: %w", name, syscall.EINVAL)
		case InProcess.Has(Choices[i].Choice):
			return 0, fmt.Errorf("programs do not meet the choice %s: %w", name, syscall.EINVAL)
		case ByRules.Has(Choices[i].Choice):
			return 0, fmt.Errorf("fault rules make the choice %s; see verbena fault add: %w", name, syscall.EINVAL)
		}
		if removed {
			s &^= Of(Choices[i].Choice)
		} else {
			s |= Of(Choices[i].Choice)
		}
	}
	if s == 0 && len(names) > 0 {
		return 0, fmt.Errorf("no choice remains of %s: %w", strings.Join(names, ","), syscall.EINVAL)
	}
	return s, nil
}

// Has reports whether a choice is in the set.
func (s Set) Has(c Choice) bool { return s&(1<<c) != 0 }

// drawRandom returns a pseudo-random number below n for a choice, for one work request of one queue pair. The seed is
// mixed first: otherwise two small seeds would give the requests the same numbers in another order.
func (c Config) drawRandom(choice Choice, qp, request uint64, n uint64) int {
	return int(mix(mix(c.Seed)^uint64(choice)<<56^qp<<32^request) % n)
}

// mix applies the finaliser of a 64-bit hash twice.
func mix(x uint64) uint64 {
	for range 2 {
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}
