package engine

// life is the stage in the end of a queue pair or of a shared receive queue. A life only advances, and may skip
// stages.
//
//	whole --> ringless --> detached --> destroyed
//
// ringless: the program has removed the memory of a ring; the queue pair goes to ERR, and the entries of the ring are
// lost. detached: the context of the program was disassociated; the queue pair has been flushed, and no thread reads
// its rings any more. destroyed: Destroy has begun; pointers to the object may still exist.
type life uint8

const (
	whole life = iota
	ringless
	detached
	destroyed
)

// reach advances to a stage, or keeps a later stage.
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
