package uverbs

import (
	"sync/atomic"
	"unsafe"

	"verbena/uapi"
)

// userRing is a ring in shared memory, used like the ring of the rxe library.
type userRing struct{ mem []byte }

func (q userRing) word(at int) *uint32 { return (*uint32)(unsafe.Pointer(&q.mem[at])) }

func (q userRing) slot(i uint32) []byte {
	shift, mask := *q.word(0), *q.word(4)
	return q.mem[uapi.RXEQueueDataOffset+int((i&mask)<<shift):][:1<<shift]
}

// post fills the next slot. post returns false if the ring is full.
func (q userRing) post(wqe []byte) bool {
	mask := *q.word(4)
	prod, cons := *q.word(uapi.RXEQueueProducerOffset), atomic.LoadUint32(q.word(uapi.RXEQueueConsumerOffset))
	if cons == (prod+1)&mask {
		return false
	}
	copy(q.slot(prod), wqe)
	atomic.StoreUint32(q.word(uapi.RXEQueueProducerOffset), (prod+1)&mask)
	return true
}

// poll consumes the next completion.
func (q userRing) poll() (uapi.WC, bool) {
	cons := *q.word(uapi.RXEQueueConsumerOffset)
	if atomic.LoadUint32(q.word(uapi.RXEQueueProducerOffset)) == cons {
		return uapi.WC{}, false
	}
	wc, _ := uapi.Decode[uapi.WC](q.slot(cons))
	atomic.StoreUint32(q.word(uapi.RXEQueueConsumerOffset), (cons+1)&*q.word(4))
	return wc, true
}
