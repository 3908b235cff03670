package engine

import (
	"verbena/engine/transport"
	"verbena/uapi"
)

// Work requests that were posted together often lie together: a program sends pieces of one buffer, or reuses the slots of one. To read each
// piece from its memory by a system call of its own takes longer than all else about a short message. So what the next ones are to send is read
// with the first of them, as far as it follows in the same page: they have been posted, so that their memory is the device's, and nothing lies
// between that could change it.

// ahead is what was read for the work requests that follow. It is good in one run of the requester.
type ahead struct {
	from *grant // by whose region it was read; it may have been revoked since. nil: nothing
	addr uint64
	n    int
	buf  [aheadBytes]byte
}

const (
	// maxAhead is the longest message that is read together with others.
	maxAhead = 512
	// aheadBytes is how much is read at a time, within an aligned block of that size, and so of a page.
	aheadBytes = 4096
	// aheadCount is for how many work requests is read at a time.
	aheadCount = 32
)

// read has what was gathered for a work request filled.
func (r *requester) read(p *pass) bool {
	g, a := &p.gather, &p.ahead
	if g.from == nil || g.n > maxAhead || len(g.vec) != 1 || g.from.direct(g.addr, g.n) != nil {
		return g.flush(r.qp)
	}
	if a.from != g.from || g.addr < a.addr || g.addr+g.n > a.addr+uint64(a.n) {
		n := r.follow(g.from.key, g.addr, g.n)
		if n == g.n {
			return g.flush(r.qp)
		}
		a.from = nil
		p.enter(r.qp)
		err := g.from.read([][]byte{a.buf[:n]}, g.addr, n)
		p.leave()
		if err != nil { // it may be another's
			return g.flush(r.qp)
		}
		a.from, a.addr, a.n = g.from, g.addr, int(n)
	}
	copy(g.vec[0], a.buf[g.addr-a.addr:])
	g.reset()
	return true
}

// follow returns how many bytes from an address on are to be sent, of which the present work request has n: by it, and those that are posted
// behind it.
func (r *requester) follow(key uint32, addr, n uint64) uint64 {
	qp, w := r.qp, &r.scratch
	most := aheadBytes - addr%aheadBytes
	for i := range aheadCount {
		if found, ok := qp.sq.Fetch(i, &w.Send); !found || !ok {
			break
		}
		if k := kindOf(qp.typ, w.Opcode); k != transport.Send && k != transport.Write ||
			w.Flags&(uapi.SendInline|uapi.SendFence) != 0 || w.NumSGE != 1 || len(w.SGEs) != 1 {
			break
		}
		s := &w.SGEs[0]
		if s.LKey != key || s.Addr != addr+n || s.Length > maxAhead || n+uint64(s.Length) > most {
			break
		}
		n += uint64(s.Length)
	}
	return n
}
