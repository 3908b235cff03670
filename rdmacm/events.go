package rdmacm

import "sync"

// eventQueue holds the events to report to IDs.
type eventQueue struct {
	sync.Mutex
	list []queuedEvent
	wake chan struct{}
	done chan struct{} // closed after the last call of an event function
}

// enqueue queues an event of an ID. The event is dropped if the ID is destroyed first. The caller holds
// Manager.mu. enqueue does not sleep.
func (q *eventQueue) enqueue(id *ID, e Event) {
	q.Lock()
	q.list = append(q.list, queuedEvent{id, e})
	q.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// dispatch calls the event functions of IDs.
func (q *eventQueue) dispatch() {
	defer close(q.done)
	for range q.wake {
		q.Lock()
		list := q.list
		q.list = nil
		q.Unlock()
		for _, x := range list {
			x.id.reportEvent(x.e)
		}
	}
}

// stopAndWait waits for the last call of an event function.
func (q *eventQueue) stopAndWait() {
	close(q.wake)
	<-q.done
}
