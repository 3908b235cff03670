package check

import (
	"fmt"
	"slices"
	"syscall"
)

// ProgramRule describes a rule that is checked for programs of user contexts.
type ProgramRule struct {
	Rule Rule
	// Off is set for rules that are off by default.
	Off bool
	// Reports describes the misuse: a predicate without its subject.
	Reports string
	// Clause names the clause of the specification or the manual page.
	Clause string
	// Remedy is the correction, in the imperative.
	Remedy string
}

// ProgramRules is the table of the rules for programs.
var ProgramRules = []ProgramRule{
	{RuleSourceChanged, false, "changes the memory of a SEND or WRITE before it polls the completion",
		"ibv_post_send(3): a buffer can only be reused safely when the completion has been retrieved",
		"Poll the completion of the request, or of a later request of the queue pair, before you fill the memory again."},
	{RuleSourceAfterReply, true, "changes the memory of a SEND or WRITE after a message of the peer, and before it polls " +
		"the completion",
		"ibv_post_send(3); a lost acknowledgement makes the device read the memory again",
		"Poll the completion of the request too."},
	{RuleTargetWritten, false, "changes the memory of a receive, READ or atomic after the arrival of the data, and before " +
		"it polls the completion",
		"ibv_post_recv(3), ibv_post_send(3): a buffer can only be used safely when the completion has been retrieved",
		"Do not store to the memory of an outstanding request."},
	{RuleSourceReused, false, "posts a receive, READ or atomic with memory of an outstanding SEND or WRITE of another queue",
		"ibv_post_send(3): a buffer can only be reused safely when the completion has been retrieved",
		"Poll the completion of the SEND or WRITE first."},
	{RuleTargetReused, true, "posts a receive, READ or atomic with memory that an outstanding request changes",
		"IBA 10.8.3.3: the order of the stores is undefined", "Use other memory for each outstanding request."},
	{RuleTargetUnflushed, true, "posts a receive, READ or atomic with memory of an outstanding request of a QP in ERR",
		"IBA 10.3.1: outstanding requests of a QP in ERR complete after some time",
		"Poll the flushed completion first."},
	{RuleSourcePending, false, "sends memory that an outstanding READ or atomic fills",
		"IBA 10.8.3.3: only a fence orders a request after an earlier READ or atomic",
		"Set IBV_SEND_FENCE, or poll the completion of the READ first."},
	{RuleInFlight, false, "deregisters or reregisters memory of an outstanding request",
		"IBA 10.6.7: the outstanding request fails, or uses memory that belongs to others",
		"Poll the completions, or destroy the queue pair, before the deregistration."},
	{RuleInFlightUnsignaled, true, "deregisters memory, or destroys an address handle, of an unsignaled request without a " +
		"later signaled one, and posts no more to the QP",
		"ibv_post_send(3): only a completion shows that the request was executed",
		"Signal the last request, and poll its completion."},
	{RuleInFlightUnflushed, true, "deregisters memory of a request of a QP in ERR before it polls the flushed completion",
		"IBA 10.3.1: outstanding requests of a QP in ERR complete after some time",
		"Poll the flushed completions, or destroy the queue pair, first."},
	{RuleUnmapped, false, "unmaps memory of an outstanding request",
		"ibv_reg_mr(3): the memory must remain mapped while it is registered",
		"Deregister the memory before munmap(2)."},
	{RuleKeyKind, false, "names its own memory by a remote key",
		"ibv_reg_mr(3): the local key is for the elements of work requests", "Use mr->lkey."},
	{RuleKeyEnded, false, "uses a local key after the end of its region",
		"IBA 10.6.7.2: a key is invalid after the deregistration", "Use the key of the present registration."},
	{RuleKeyUnknown, false, "uses a local key that no region has", "IBA 10.6.3.3", "Use mr->lkey."},
	{RuleKeyDomain, false, "uses a region of another protection domain",
		"IBA 10.6.3.1: region and queue pair belong to one domain", "Register the memory in the domain of the queue pair."},
	{RuleKeyRange, false, "posts an element that exceeds its region", "IBA 10.6.3.3: an access must lie in the region",
		"Correct the address or length, or register more memory."},
	{RuleKeyRight, false, "posts a receive, READ or atomic to memory without IBV_ACCESS_LOCAL_WRITE",
		"ibv_reg_mr(3): local write access is needed for memory that the device changes",
		"Register the memory with IBV_ACCESS_LOCAL_WRITE."},
	{RuleUseAfterDestroy, false, "posts a datagram with a destroyed address handle",
		"IBA 10.2.2.2", "Destroy the address handle after the last completion."},
	{RuleAHInFlight, false, "destroys an address handle of an outstanding datagram",
		"ibv_post_send(3): handles may be destroyed when the completion has been retrieved",
		"Poll the completion of the datagram first."},
	{RuleCQTooSmall, false, "posts more signaled requests and receives than the CQ has entries",
		"IBA 10.8.1: the consumer ensures that the completion queue does not overflow",
		"Request more entries, or post less."},
	{RuleUnsignaledOnly, false, "fills a send queue with unsignaled requests, and tries again and again to post another",
		"IBA 10.8.6: unsignaled requests occupy the queue until a later request completes",
		"Signal at least one request for each filling of the queue."},
	{RuleArmWithoutPoll, false, "arms a CQ that holds completions, and does not poll it, or not all of them",
		"ibv_req_notify_cq(3): completions that are in the queue cause no event",
		"Poll after ibv_req_notify_cq until the CQ is empty."},
	{RuleDestroyUndrained, false, "polls a completion of a destroyed QP",
		"IBA 10.2.4.5: completions of a destroyed QP may be lost", "Poll all completions before you destroy the QP."},
	{RulePostsInErr, false, "posts 16 sends on a QP in ERR after it has polled a failure",
		"IBA 10.3.1: requests on a queue pair in ERR are flushed",
		"Reset the queue pair, or connect again."},
	{RuleLeftInSQE, false, "continues to post sends on a QP in SQE after it has polled a failure",
		"IBA 10.3.1.6: sends on a queue pair in SQE are flushed until it is moved to RTS",
		"Modify the queue pair to RTS."},
	{RuleNoReceive, false, "has posted no receive when the first message of an RC connection arrives, within a second",
		"IBA 9.7.5.2.8: the responder answers receiver not ready, and the sender's retries may end",
		"Post receives before the Modify to RTR, and before you tell the peer to send."},
}

// RuleSet is a set of rules.
type RuleSet uint64

// Has reports whether a rule is in the set.
func (s RuleSet) Has(r Rule) bool { return s&(1<<r) != 0 }

// AllRules is the name that ParseProgramRules accepts for all rules.
const AllRules = "all"

// ParseProgramRules returns the set of the rules with the given names. A name after a minus sign removes its rule. If
// the first name has a minus sign, or there is no name, the set begins with the rules that are on by default.
// ParseProgramRules returns EINVAL for an unknown name.
func ParseProgramRules(names []string) (s RuleSet, err error) {
	if len(names) == 0 || names[0] != "" && names[0][0] == '-' {
		for _, r := range ProgramRules {
			if !r.Off {
				s |= 1 << r.Rule
			}
		}
	}
	for _, name := range names {
		remove := name != "" && name[0] == '-'
		if remove {
			name = name[1:]
		}
		if name == AllRules && !remove {
			for _, r := range ProgramRules {
				s |= 1 << r.Rule
			}
			continue
		}
		i := slices.IndexFunc(ProgramRules, func(r ProgramRule) bool { return r.Rule.String() == name })
		switch {
		case i < 0:
			return 0, fmt.Errorf("no rule for programs has the name %q: %w", name, syscall.EINVAL)
		case remove:
			s &^= 1 << ProgramRules[i].Rule
		default:
			s |= 1 << ProgramRules[i].Rule
		}
	}
	return s, nil
}
