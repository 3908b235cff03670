package engine

import (
	"fmt"
	"syscall"

	"verbena/engine/queue"
)

// limits holds the maximum queue sizes that the device advertises.
type limits struct {
	wr     uint32 // length of send, receive and shared receive queues
	cqe    int
	sge    uint32 // elements of a work request
	inline uint32 // bytes
}

// limitsIn returns the largest limits with which one queue pair and one completion queue, at all their limits, fit
// into the memory for the queues of a program. memory is in bytes; 0: no maximum. The error is ENOMEM if memory is
// below MinQueueMemory.
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

// MinQueueMemory returns the minimum of Config.QueueMemory, in bytes, for a device with a layout.
func MinQueueMemory(q queue.Layout) uint64 {
	context, work, completions := q.Memory(1, 1)
	return context + work + completions
}

// QueueLimits returns the maximum lengths of a work queue and a completion queue, in entries, for a device with a
// layout and a Config.QueueMemory. The error is the same as from New.
func QueueLimits(q queue.Layout, memory uint64) (work, completions int, err error) {
	l, err := limitsIn(q, memory)
	return int(l.wr), l.cqe, err
}
