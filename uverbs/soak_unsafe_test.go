package uverbs

import (
	"sync/atomic"
	"unsafe"

	"verbena/uverbs/abi"
)

// userRing is a ring as the library of rxe uses it, in memory that the device shares with the program.
type userRing struct{ mem []byte }

func (q userRing) word(at int) *uint32 { return (*uint32)(unsafe.Pointer(&q.mem[at])) }

func (q userRing) slot(i uint32) []byte {
	shift, mask := *q.word(0), *q.word(4)
	return q.mem[abi.RXEQueueDataOffset+int((i&mask)<<shift):][:1<<shift]
}

// post fills the next slot, false if the ring is full.
func (q userRing) post(wqe []byte) bool {
	mask := *q.word(4)
	prod, cons := *q.word(abi.RXEQueueProducerOffset), atomic.LoadUint32(q.word(abi.RXEQueueConsumerOffset))
	if cons == (prod+1)&mask {
		return false
	}
	copy(q.slot(prod), wqe)
	atomic.StoreUint32(q.word(abi.RXEQueueProducerOffset), (prod+1)&mask)
	return true
}

// poll takes the next completion.
func (q userRing) poll() (abi.WC, bool) {
	cons := *q.word(abi.RXEQueueConsumerOffset)
	if atomic.LoadUint32(q.word(abi.RXEQueueProducerOffset)) == cons {
		return abi.WC{}, false
	}
	wc, _ := abi.Decode[abi.WC](q.slot(cons))
	atomic.StoreUint32(q.word(abi.RXEQueueConsumerOffset), (cons+1)&*q.word(4))
	return wc, true
}
