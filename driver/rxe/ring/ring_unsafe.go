package ring

import (
	"unsafe"

	"verbena/uapi"
)

// attach sets the pointers to the indices in the memory of the ring. The memory holds at least a header, and is
// aligned.
func (r *Ring) attach() {
	r.prod = (*uint32)(unsafe.Pointer(&r.mem[uapi.RXEQueueProducerOffset]))
	r.cons = (*uint32)(unsafe.Pointer(&r.mem[uapi.RXEQueueConsumerOffset]))
}
