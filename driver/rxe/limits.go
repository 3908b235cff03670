package rxe

import (
	"fmt"
	"os"
	"syscall"

	"verbena/driver/rxe/ring"
	"verbena/uapi"
)

// The largest queues there can be, one slot less than a power of two. Work queues could be longer in the kernel's rxe
// (2^20), but not with all scatter and gather elements in each work request; adapters have 2^14 to 2^15. Completion queues of the kernel's
// rxe have 2^15 slots at most, which is too few for libraries that complete all of a program's work on one; adapters have 2^22.
const (
	maxQPWR = 1<<16 - 1
	maxCQE  = 1<<20 - 1

	usualCQE = 1<<15 - 1 // RXE_MAX_LOG_CQE
)

// ring.Abandon completes the work requests of every queue pair that the device can have.
var (
	_ [ring.MaxEntries - maxQPSlot]struct{}
	_ [ring.MaxSlotBytes - max(maxSendWQESize, maxRecvWQESize)]struct{}
	_ [ring.MaxSlots - (max(maxCQE, maxQPWR) + 1)]struct{}
)

// limits are what the device says the sizes of queues can be.
type limits struct {
	wr  uint32 // of send, receive and shared receive queues
	cqe int
}

// limitsIn returns the largest limits with which a queue pair at all its limits and a completion queue at its own fit
// into the memory, in bytes, that a program can have for its queues; 0 is no bound. ENOMEM below Driver.MinQueueMemory.
func limitsIn(memory uint64) (limits, error) {
	l := limits{wr: maxQPWR, cqe: maxCQE}
	for memory != 0 {
		work, completions := l.memory()
		switch {
		case work+completions+ring.DirectoryPageSize <= memory:
			return l, nil
		case l.cqe > usualCQE:
			l.cqe >>= 1
		case l.wr > 1 && (work >= completions || l.cqe == 1):
			l.wr >>= 1
		case l.cqe > 1:
			l.cqe >>= 1
		default:
			return l, fmt.Errorf("%d bytes of memory for queues are less than %d, which one queue pair takes: %w",
				memory, work+completions+ring.DirectoryPageSize, syscall.ENOMEM)
		}
	}
	return l, nil
}

// memory returns the shared memory, in bytes, of the work queues of a queue pair, and of a completion queue, at the limits.
func (l limits) memory() (work, completions uint64) {
	work = ringMemory(int(l.wr), maxSendWQESize) + ringMemory(int(l.wr), maxRecvWQESize)
	return work, ringMemory(l.cqe, uapi.RXECQESize)
}

// MinQueueMemory returns the least Config.QueueMemory, in bytes, with which a device can be made.
func (*Driver) MinQueueMemory() uint64 {
	work, completions := limits{wr: 1, cqe: 1}.memory()
	return work + completions + ring.DirectoryPageSize
}

// QueueLimits returns the longest work queue and completion queue, in entries, that a device with that Config.QueueMemory has. The
// error is that of New.
func (*Driver) QueueLimits(memory uint64) (work, completions int, err error) {
	l, err := limitsIn(memory)
	return int(l.wr), l.cqe, err
}

// ringMemory returns the shared memory that a ring takes, in bytes.
func ringMemory(entries, size int) uint64 {
	page := os.Getpagesize()
	return uint64((ring.Size(entries, size) + page - 1) / page * page)
}
