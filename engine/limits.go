package engine

import (
	"fmt"
	"syscall"

	"verbena/engine/queue"
)

// limits are what the device says the sizes of queues can be.
type limits struct {
	wr     uint32 // of send, receive and shared receive queues
	cqe    int
	sge    uint32 // elements of a work request
	inline uint32 // bytes
}

// limitsIn returns the largest limits with which a queue pair at all its limits and a completion queue at its own fit
// into the memory, in bytes, that a program can have for its queues; 0 is no bound. ENOMEM below MinQueueMemory.
func limitsIn(q queue.Layout, memory uint64) (limits, error) {
	most := q.Limits()
	l := limits{wr: most.WR, cqe: most.CQE, sge: most.SGE, inline: most.Inline}
	for memory != 0 {
		context, work, completions := q.Memory(l.wr, l.cqe)
		switch {
		case context+work+completions <= memory:
			return l, nil
		case l.cqe > most.UsualCQE:
			l.cqe >>= 1
		case l.wr > 1 && (work >= completions || l.cqe == 1):
			l.wr >>= 1
		case l.cqe > 1:
			l.cqe >>= 1
		default:
			return l, fmt.Errorf("%d bytes of memory for queues are less than %d, which one queue pair takes: %w",
				memory, context+work+completions, syscall.ENOMEM)
		}
	}
	return l, nil
}

// MinQueueMemory returns the least Config.QueueMemory, in bytes, with which a device with a layout can be made.
func MinQueueMemory(q queue.Layout) uint64 {
	context, work, completions := q.Memory(1, 1)
	return context + work + completions
}

// QueueLimits returns the longest work queue and completion queue, in entries, that a device with a layout and that
// Config.QueueMemory has. The error is that of New.
func QueueLimits(q queue.Layout, memory uint64) (work, completions int, err error) {
	l, err := limitsIn(q, memory)
	return int(l.wr), l.cqe, err
}
