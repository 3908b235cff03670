package check

import (
	"slices"
	"sync"
)

// maxImages limits the elements of a program's requests for which the stored data are kept.
const maxImages = 1024

// storedImages holds the data that the device stores to the memory of a program's requests. The program may change the
// memory at once, so a later copy of the memory can have the change.
type storedImages struct {
	mu   sync.Mutex // a leaf
	live map[*contents]struct{}
}

// addImages begins to keep the data that the device stores to the elements of a request.
func (p *Program) addImages(o *checkedObject, r *trackedRequest) {
	s := &p.stores
	if r.images != nil || !isSampled(r.info.Index) || p.cfg.Rules&targetRules == 0 {
		return
	}
	all := o.newContents(r.list, r.info.Length)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live)+len(all) > maxImages {
		return
	}
	if s.live == nil {
		s.live = map[*contents]struct{}{}
	}
	for _, c := range all {
		s.live[c] = struct{}{}
	}
	r.images = all
}

// recordStore records the begin or the end of a store of the device. data holds the stored bytes, or is nil.
func (p *Program) recordStore(addr, n uint64, data [][]byte) {
	p.writes.record(addr, n)
	if data == nil {
		return
	}
	p.stores.mu.Lock()
	defer p.stores.mu.Unlock()
	for c := range p.stores.live {
		if !c.span().overlaps(memorySpan{addr, n}) {
			continue
		}
		if c.copied == nil {
			if p.copied.Add(int64(c.size())) > maxCopies {
				p.copied.Add(-int64(c.size()))
				delete(p.stores.live, c)
				continue
			}
			c.copied = make([]byte, c.size())
		}
		c.keep(addr, data)
		c.writes = p.writes.changeCount()
	}
}

// keep copies stored data at an address of the program.
func (c *contents) keep(addr uint64, data [][]byte) {
	if addr <= c.at+c.known {
		n := uint64(0)
		for _, b := range data {
			n += uint64(len(b))
		}
		c.known = max(c.known, min(addr+n-c.at, c.n))
	}
	for _, b := range data {
		if c.n <= maxCopied {
			copyAt(c.copied, c.at, b, addr)
		} else {
			for i := range copiedParts {
				copyAt(c.copied[i*partLen:(i+1)*partLen], c.at+c.partOffset(i), b, addr)
			}
		}
		addr += uint64(len(b))
	}
}

// copyAt copies the part of b that lies in to. Both have an address.
func copyAt(to []byte, at uint64, b []byte, addr uint64) {
	switch {
	case addr < at && at-addr < uint64(len(b)):
		copy(to, b[at-addr:])
	case addr >= at && addr-at < uint64(len(to)):
		copy(to[addr-at:], b)
	}
}

// takeImages returns the elements of an executed request, up to a length, with the data that the device has stored.
// Elements of which not all data are known have no copies.
func (p *Program) takeImages(o *checkedObject, r *trackedRequest, length uint64) []*contents {
	all := o.newContents(r.list, length)
	p.stores.mu.Lock()
	for _, c := range all {
		for _, old := range r.images {
			if old.copied == nil || old.at != c.at || c.n > old.known || old.n != c.n && old.n > maxCopied {
				continue
			}
			c.copied, c.writes = slices.Clone(old.copied[:c.size()]), old.writes
			p.copied.Add(int64(len(c.copied)))
		}
	}
	p.stores.mu.Unlock()
	p.dropImages(r)
	return all
}

// dropImages ends the recording of the data of a request.
func (p *Program) dropImages(r *trackedRequest) {
	p.stores.mu.Lock()
	defer p.stores.mu.Unlock()
	for _, c := range r.images {
		delete(p.stores.live, c)
		p.copied.Add(-int64(len(c.copied)))
	}
	r.images = nil
}
