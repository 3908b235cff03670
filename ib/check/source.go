package check

import (
	"encoding/binary"
	"sync"

	"verbena/ib"
	"verbena/umem"
)

// The limits of the comparison of source memory.
const (
	maxWhole    = 64 << 10 // longest source, in bytes, that is compared as a whole
	sampleEvery = 4 << 10  // distance of the compared parts of a longer source
	sampleLen   = 64
	maxLandings = 4096
)

// region is the memory of an MR, from its registration until its deregistration or change begins.
type region struct {
	key    regionKey
	mu     sync.RWMutex // read-locked while the memory is read
	gone   bool         // the memory may not be read any more
	memory *umem.Region // nil: the region is registered by work requests
	remote bool         // the memory may be changed by a peer
}

// regionKey identifies a region by its device and local key.
type regionKey struct {
	dev  *ib.Device
	lkey uint32
}

// source is a part of the memory that a work request sends.
type source struct {
	of      *region
	addr, n uint64 // in the region's addresses
	at      uint64 // address in this process
	sum     uint64
}

// span is a range of memory of this process that a work request may change.
type span struct{ addr, n uint64 }

func (s span) overlaps(o span) bool { return s.addr < o.addr+o.n && o.addr < s.addr+s.n }

// landings records the memory of the last requests that may have changed memory, and are done.
type landings struct {
	mu    sync.Mutex
	count uint64
	last  []span // by number, modulo maxLandings
}

func (l *landings) now() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *landings) add(all []span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range all {
		if len(l.last) < maxLandings {
			l.last = append(l.last, s)
		} else {
			l.last[l.count%maxLandings] = s
		}
		l.count++
	}
}

// may reports whether a request that has ended since a count may have changed a range.
func (l *landings) may(s span, since uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count-since > maxLandings {
		return true
	}
	for n := since; n < l.count; n++ {
		if l.last[n%maxLandings].overlaps(s) {
			return true
		}
	}
	return false
}

// addRegion records the memory of o if o is an MR. The caller is inside a call that creates or changes the region.
func (o *object) addRegion() {
	mr, ok := o.self.(*ib.MR)
	if !ok {
		return
	}
	const mayChange = ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessMWBind
	r := &region{key: regionKey{o.dev, mr.LKey()}, memory: mr.Region(), remote: mr.Access()&mayChange != 0}
	o.region.Store(r)
	o.k.regions.Store(r.key, r)
	if o.ends.Load() != nil {
		o.endRegion()
	}
}

// endRegion waits until no comparison reads the memory of o, and prevents further ones.
func (o *object) endRegion() {
	r := o.region.Swap(nil)
	if r == nil {
		return
	}
	o.k.regions.CompareAndDelete(r.key, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
}

// regionOf returns the region of a scatter/gather element, or nil if its memory is unknown.
func (w *work) regionOf(s ib.SGE) *region {
	x, ok := w.o.k.regions.Load(regionKey{w.o.dev, s.LKey})
	if !ok {
		return nil
	}
	r := x.(*region)
	if r.memory == nil || !r.memory.Contains(s.Addr, uint64(s.Length)) {
		return nil
	}
	return r
}

// targetsOf returns the memory that a request may change.
func (w *work) targetsOf(list []ib.SGE) (targets []span) {
	for _, s := range list {
		if s.Length == 0 {
			continue
		}
		addr := s.Addr
		if r := w.regionOf(s); r != nil {
			addr += r.memory.Addr() - r.memory.IOVA()
		}
		targets = append(targets, span{addr, uint64(s.Length)})
	}
	return targets
}

// noteMemory records the memory that a send reads or changes.
func (w *work) noteMemory(r *request, wr *ib.SendWR) {
	switch wr.Opcode {
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd:
		r.targets = w.targetsOf(wr.SGList)
	case ib.WRSend, ib.WRSendWithImm, ib.WRSendWithInv, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		if wr.Flags&ib.SendInline == 0 {
			r.since = w.o.k.landings.now()
			r.sources = w.sourcesOf(wr.SGList)
		}
	}
}

// sourcesOf returns the memory of a list with its sums, without memory that a peer may change.
func (w *work) sourcesOf(list []ib.SGE) (sources []source) {
	n := uint64(0)
	for _, s := range list {
		n += uint64(s.Length)
	}
	for _, e := range list {
		of := w.regionOf(e)
		if e.Length == 0 || of == nil || of.remote {
			continue
		}
		s := source{of: of, addr: e.Addr, n: uint64(e.Length), at: e.Addr + of.memory.Addr() - of.memory.IOVA()}
		if sum, ok := s.read(n <= maxWhole); ok {
			s.sum = sum
			sources = append(sources, s)
		}
	}
	return sources
}

// read returns the sum of the present contents. ok is false if the memory cannot be read without a wait.
func (s *source) read(whole bool) (sum uint64, ok bool) {
	if !s.of.mu.TryRLock() {
		return 0, false // the region ends
	}
	defer s.of.mu.RUnlock()
	if s.of.gone || s.of.memory.OnDemand() {
		return 0, false
	}
	b := s.of.memory.Direct(s.addr, s.n)
	if b == nil {
		return 0, false
	}
	if whole {
		return sumOf(b, sumSeed), true
	}
	sum = sumSeed
	for i := 0; i < len(b); i += sampleEvery {
		sum = sumOf(b[i:min(i+sampleLen, len(b))], sum)
	}
	return sum, true
}

const sumSeed = 0x9e3779b97f4a7c15

// sumOf returns a sum of b, beginning with a former sum. The race detector must not see these accesses: a consumer may
// send memory that the device changes, if the contents do not matter.
//
//go:norace
func sumOf(b []byte, sum uint64) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		sum = (sum ^ binary.LittleEndian.Uint64(b)) * 0x94d049bb133111eb
		sum ^= sum >> 29
	}
	for _, c := range b {
		sum = (sum ^ uint64(c)) * 0x94d049bb133111eb
	}
	return sum
}

// changed reports whether the source memory of the request has changed since the post.
func (r *request) changed() bool {
	n := uint64(0)
	for i := range r.sources {
		n += r.sources[i].n
	}
	for i := range r.sources {
		s := &r.sources[i]
		if sum, ok := s.read(n <= maxWhole); ok && sum != s.sum {
			r.sources = r.sources[i : i+1]
			return true
		}
	}
	return false
}

// checkSources reports requests of one queue with source memory that has changed before their completion. Changes by
// the device are not reported. f is the poll that returns the completion.
func (w *work) checkSources(f *frame, changed []*request) {
	for _, r := range changed {
		s := r.sources[0]
		at := span{s.at, s.n}
		if w.lost() || w.o.k.deviceMayChange(at) || w.o.k.landings.may(at, r.since) {
			continue
		}
		w.o.k.report(Violation{
			Rule: RuleSourceChanged,
			What: "the memory of a work request was changed before the completion was polled: the peer may get the old " +
				"data or the new data",
			Stacks: []Stack{{"the work request posted at", trace(r.at)}, {"CQ.Poll, which returns the completion",
				trace(f.entry)}, {"the QP made at", trace(w.o.made)}},
		}, w.o.dev, r.at)
	}
}

// deviceMayChange reports whether an outstanding request or a peer may change memory of this process. The memory of a
// region of AllocMR is unknown, so such a region may have any memory.
func (k *checker) deviceMayChange(s span) bool {
	may := false
	k.regions.Range(func(_, x any) bool {
		r := x.(*region)
		may = r.memory == nil || r.remote && s.overlaps(span{r.memory.Addr(), r.memory.Len()})
		return !may
	})
	if may {
		return true
	}
	var all []*work
	k.mu.Lock()
	for o := range k.live {
		if o.work != nil {
			all = append(all, o.work)
		}
	}
	k.mu.Unlock()
	for _, w := range all {
		if w.mayChange(s) {
			return true
		}
	}
	return false
}

// mayChange reports whether an outstanding request of the queue may change a range.
func (w *work) mayChange(s span) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range [][]*request{w.send, w.recv} {
		for _, r := range q {
			for _, t := range r.targets {
				if t.overlaps(s) {
					return true
				}
			}
		}
	}
	return false
}
