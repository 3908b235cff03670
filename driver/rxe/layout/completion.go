package layout

import (
	"verbena/driver/rxe/ring"
	"verbena/uapi"
)

// completionQueue is a ring of struct ib_uverbs_wc. The engine is the producer.
type completionQueue struct {
	ring *ring.Ring
	prod uint32 // next slot to fill
	cons uint32 // next slot that the consumer empties, as of the last call of Oldest
}

func newCompletion(entries int, alloc ring.Alloc) (*completionQueue, error) {
	r, err := ring.New(entries, uapi.RXECQESize, alloc)
	if err != nil {
		return nil, err
	}
	return &completionQueue{ring: r}, nil
}

func (q *completionQueue) rings() *ring.Ring { return q.ring }

// Capacity implements queue.CompletionQueue.
func (q *completionQueue) Capacity() int { return q.ring.Capacity() }

// Oldest implements queue.CompletionQueue.
func (q *completionQueue) Oldest() (at, waiting uint32, repaired, ok bool) {
	at, repaired, ok = q.ring.Consumed(q.cons, q.prod)
	if !ok {
		return 0, 0, false, false
	}
	q.cons = at
	return at, q.ring.Between(at, q.prod), repaired, true
}

// Push implements queue.CompletionQueue. (rxe_cq_post)
func (q *completionQueue) Push(wc *uapi.WC) (ok bool) {
	var slot [uapi.RXECQESize]byte
	uapi.Encode(slot[:], wc)
	if !q.ring.Fill(q.prod, slot[:]) {
		return false
	}
	q.prod = q.ring.Next(q.prod)
	return true
}

// Fetch implements queue.CompletionQueue.
func (q *completionQueue) Fetch(at, n uint32, wc *uapi.WC) (found, ok bool) {
	var slot [uapi.RXECQESize]byte
	if found, ok = q.ring.PeekNth(at, n, slot[:]); found && ok {
		*wc, _ = uapi.Decode[uapi.WC](slot[:])
	}
	return found, ok
}

// Consume implements queue.CompletionQueue.
func (q *completionQueue) Consume(at, n uint32) (ok bool) {
	return q.ring.SetConsumer(q.ring.Add(at, n))
}

// Free implements queue.CompletionQueue.
func (q *completionQueue) Free() { q.ring.Free() }
