package relay

import "verbena/ib"

// request is a posted request. The program has not got its completion.
type request struct {
	id uint64
	// status is WCSuccess, or the status of a request that the weak device cannot take. Another request, which fails,
	// was posted in its place.
	status ib.WCStatus
	slot   bool // the request occupies an entry of the program's queue
}

// requestList holds the requests of a queue in order. The low half of a request's ID is its number.
type requestList struct {
	first uint32 // number of list[0]
	list  []request
}

// recvNumber is set in the numbers of receives. The other bits count.
const recvNumber = 1 << 31

// add adds a request, and returns its number.
func (l *requestList) add(r request) (number uint32) {
	number = l.next()
	l.list = append(l.list, r)
	return number
}

// next returns the number of the request that is added next.
func (l *requestList) next() uint32 { return (l.first + uint32(len(l.list))) &^ recvNumber }

// removeLast removes the request that was added last.
func (l *requestList) removeLast() { l.list = l.list[:len(l.list)-1] }

// finish removes the request with a number, and those before it. slots is the number of entries that become free.
// finish returns false if the request does not exist.
func (l *requestList) finish(number uint32) (r request, slots int, ok bool) {
	n := int((number - l.first) &^ recvNumber)
	if n >= len(l.list) {
		return r, 0, false
	}
	r = l.list[n]
	for _, x := range l.list[:n+1] {
		if x.slot {
			slots++
		}
	}
	l.first += uint32(n + 1)
	if l.list = l.list[n+1:]; len(l.list) == 0 {
		l.list = nil
	}
	return r, slots, true
}

// drop removes all requests. Their completions will not be found.
func (l *requestList) drop() {
	l.first += uint32(len(l.list))
	l.list = nil
}

// applyTo replaces the fields of a completion by those of the request.
func (r *request) applyTo(wc *ib.WC) {
	wc.ID = r.id
	if r.status != ib.WCSuccess && wc.Status != ib.WCWRFlushErr {
		wc.Status = r.status
	}
}

// refusedLKey is a local key that no region has. A request with this key fails.
const refusedLKey = 0x7ffffff1

// refusedElement is the element of a request that must fail.
var refusedElement = ib.SGE{Addr: 8, Length: 1, LKey: refusedLKey}
