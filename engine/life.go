package engine

// life is how much of a queue pair, or of a shared receive queue, is still there. It only goes forward, and may skip
// states.
//
//	whole --> ringless --> detached --> destroyed
//
// ringless: the program has taken the memory of a ring away; the queue pair goes to ERR, and what lies in the ring is
// lost. detached: the context of the program was disassociated; the queue pair has been flushed, and its rings are not
// looked at any more. destroyed: Destroy has begun; pointers to it may still be around.
type life uint8

const (
	whole life = iota
	ringless
	detached
	destroyed
)

// reach goes forward to a state, or stays where it is beyond that.
func (l *life) reach(to life) { *l = max(*l, to) }

// drain is the state of a send queue that is being drained (SQD, IBA 10.3.1).
//
//	notDraining --modified to SQD--> draining --nothing is in flight--> drained --modified to RTS--> notDraining
type drain uint8

const (
	notDraining drain = iota
	draining          // work requests are in flight; only ERR and RESET can follow
	drained
)
