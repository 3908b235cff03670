package ring

import (
	"unsafe"

	"verbena/uapi"
)

// attach finds the indices in the ring's memory, which is at least a header long and aligned for them.
func (r *Ring) attach() {
	r.prod = (*uint32)(unsafe.Pointer(&r.mem[uapi.RXEQueueProducerOffset]))
	r.cons = (*uint32)(unsafe.Pointer(&r.mem[uapi.RXEQueueConsumerOffset]))
}
