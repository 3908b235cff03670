package rxe

import (
	"unsafe"

	"verbena/uverbs/abi"
)

// attach finds the indices in the ring's memory, which is at least a header long and aligned for them.
func (r *ring) attach() {
	r.prod = (*uint32)(unsafe.Pointer(&r.mem[abi.RXEQueueProducerOffset]))
	r.cons = (*uint32)(unsafe.Pointer(&r.mem[abi.RXEQueueConsumerOffset]))
}
