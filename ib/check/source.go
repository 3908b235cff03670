package check

import (
	"encoding/binary"
	"slices"
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

// memoryRegion is the memory of an MR, from its registration until its deregistration or change begins.
type memoryRegion struct {
	key regionKey
	// mu is read-locked while memory that never stalls is read.
	mu sync.RWMutex
	// reading is read-locked while the memory of a program is read. It comes before mu.
	//verbena:program the deregistration by the program, or by the end of its context
	reading sync.RWMutex

	gone   bool         // the memory may not be read any more
	memory *umem.Region // nil: the region is registered by work requests
	remote bool         // the memory may be changed by a peer
	user   *userRegion  // the region of a program, or nil
}

// regionKey identifies a region by its device and local key.
type regionKey struct {
	dev  *ib.Device
	lkey uint32
}

// sendSource is a part of the memory that a work request sends.
type sendSource struct {
	of      *memoryRegion
	addr, n uint64 // in the region's addresses
	at      uint64 // address in this process
	sum     uint64
}

// memorySpan is a range of memory of this process that a work request may change.
type memorySpan struct{ addr, n uint64 }

func (s memorySpan) overlaps(o memorySpan) bool { return s.addr < o.addr+o.n && o.addr < s.addr+s.n }

// memoryChanges records the memory of the last requests that may have changed memory, and are done.
type memoryChanges struct {
	mu    sync.Mutex
	count uint64
	last  []memorySpan // by number, modulo maxLandings
}

func (l *memoryChanges) changeCount() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *memoryChanges) recordChanges(all []memorySpan) {
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

// mayHaveChanged reports whether a request that has ended since a count may have changed a range.
func (l *memoryChanges) mayHaveChanged(s memorySpan, since uint64) bool {
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
func (o *checkedObject) addRegion() {
	mr, ok := o.self.(*ib.MR)
	if !ok {
		return
	}
	const mayChange = ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessMWBind
	r := &memoryRegion{key: regionKey{o.dev, mr.LKey()}, memory: mr.Region(), remote: mr.Access()&mayChange != 0}
	o.region.Store(r)
	o.k.regions.Store(r.key, r)
	if o.ends.Load() != nil {
		o.endRegionComparisons()
	}
}

// endRegionComparisons waits until no comparison reads the memory of o, and prevents further ones.
func (o *checkedObject) endRegionComparisons() {
	r := o.region.Swap(nil)
	if r == nil {
		return
	}
	o.k.regions.CompareAndDelete(r.key, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
}

// findRegion returns the region of a scatter/gather element, or nil if its memory is unknown.
func (o *checkedObject) findRegion(s ib.SGE) *memoryRegion {
	x, ok := o.k.regions.Load(regionKey{o.dev, s.LKey})
	if !ok {
		return nil
	}
	r := x.(*memoryRegion)
	if r.memory == nil || !r.memory.Contains(s.Addr, uint64(s.Length)) {
		return nil
	}
	return r
}

// spansOf returns the memory of a scatter/gather list.
func (o *checkedObject) spansOf(list []ib.SGE) (spans []memorySpan) {
	for _, s := range list {
		if s.Length == 0 {
			continue
		}
		addr := s.Addr
		if r := o.findRegion(s); r != nil {
			addr += r.memory.Addr() - r.memory.IOVA()
		}
		spans = append(spans, memorySpan{addr, uint64(s.Length)})
	}
	return spans
}

// ownedSpans returns the memory of a request that belongs to this process and can be accessed without a wait.
func (o *checkedObject) ownedSpans(list []ib.SGE) (spans []memorySpan) {
	if !raceDetector || !o.k.cfg.Ownership {
		return nil
	}
	for _, s := range list {
		r := o.findRegion(s)
		if s.Length == 0 || r == nil || !r.mu.TryRLock() {
			continue
		}
		if !r.gone && !r.memory.OnDemand() && r.memory.Direct(s.Addr, uint64(s.Length)) != nil {
			spans = append(spans, memorySpan{s.Addr + r.memory.Addr() - r.memory.IOVA(), uint64(s.Length)})
		}
		r.mu.RUnlock()
	}
	return spans
}

// recordRequestMemory records the memory that a send reads or changes.
func (w *workTracker) recordRequestMemory(r *trackedRequest, wr *ib.SendWR) {
	switch wr.Opcode {
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd:
		r.targets = w.o.spansOf(wr.SGList)
		r.isRead = true
		w.recordTargets(r, wr.SGList)
		r.owned = w.o.ownedSpans(wr.SGList)
	case ib.WRSend, ib.WRSendWithImm, ib.WRSendWithInv, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		r.sent = w.o.spansOf(wr.SGList)
		if wr.Flags&ib.SendInline == 0 {
			r.since = w.o.k.landings.changeCount()
			r.sources = w.o.sendSources(wr.SGList)
			w.copySources(r, wr)
			r.read = w.o.ownedSpans(wr.SGList)
		}
	}
}

// sendSources returns the memory of a list with its sums, without memory that a peer may change.
func (o *checkedObject) sendSources(list []ib.SGE) (sources []sendSource) {
	n := uint64(0)
	for _, s := range list {
		n += uint64(s.Length)
	}
	for _, e := range list {
		of := o.findRegion(e)
		if e.Length == 0 || of == nil || of.remote {
			continue
		}
		s := sendSource{of: of, addr: e.Addr, n: uint64(e.Length), at: e.Addr + of.memory.Addr() - of.memory.IOVA()}
		if sum, ok := s.checksumContents(n <= maxWhole); ok {
			s.sum = sum
			sources = append(sources, s)
		}
	}
	return sources
}

// checksumContents returns the sum of the present contents. ok is false if the memory cannot be read without a wait.
func (s *sendSource) checksumContents(whole bool) (sum uint64, ok bool) {
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
		return checksum(b, checksumSeed), true
	}
	sum = checksumSeed
	for i := 0; i < len(b); i += sampleEvery {
		sum = checksum(b[i:min(i+sampleLen, len(b))], sum)
	}
	return sum, true
}

const checksumSeed = 0x9e3779b97f4a7c15

// checksum returns a sum of b, beginning with a former sum. The race detector must not see these accesses: a consumer
// may send memory that the device changes, if the contents do not matter.
//
//go:norace
func checksum(b []byte, sum uint64) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		sum = (sum ^ binary.LittleEndian.Uint64(b)) * 0x94d049bb133111eb
		sum ^= sum >> 29
	}
	for _, c := range b {
		sum = (sum ^ uint64(c)) * 0x94d049bb133111eb
	}
	return sum
}

// hasChangedSource reports whether the source memory of the request has changed since the post.
func (r *trackedRequest) hasChangedSource() bool {
	n := uint64(0)
	for i := range r.sources {
		n += r.sources[i].n
	}
	for i := range r.sources {
		s := &r.sources[i]
		if sum, ok := s.checksumContents(n <= maxWhole); ok && sum != s.sum {
			r.sources = r.sources[i : i+1]
			return true
		}
	}
	return false
}

// checkSources reports requests of one queue with source memory that has changed before their completion. Changes by
// the device are not reported. f is the poll that returns the completion.
func (w *workTracker) checkSources(f *frame, changed []*trackedRequest) {
	for _, r := range changed {
		s := r.sources[0]
		at := memorySpan{s.at, s.n}
		if w.mayHaveLostCompletions() || w.o.k.deviceMayChange(at) || w.o.k.landings.mayHaveChanged(at, r.since) {
			continue
		}
		w.o.k.report(Violation{
			Rule: RuleSourceChanged, Requests: describe(r),
			What: "the memory of a work request was changed before the completion was polled: the peer may get the old " +
				"data or the new data",
			Stacks: []Stack{{"the work request posted at", formatStack(r.at)}, {"CQ.Poll, which returns the completion",
				formatStack(f.entry)}, {"the QP made at", formatStack(w.o.made)}},
		}, w.o.dev, r.at)
	}
}

// deviceMayChange reports whether an outstanding request or a peer may change memory of this process. The memory of a
// region of AllocMR is unknown, so such a region may have any memory.
func (k *checker) deviceMayChange(s memorySpan) bool {
	if k.program != nil {
		return false // package check observes the writes of the device instead
	}
	may := false
	k.regions.Range(func(_, x any) bool {
		r := x.(*memoryRegion)
		may = r.memory == nil || r.remote && s.overlaps(memorySpan{r.memory.Addr(), r.memory.Len()})
		return !may
	})
	if may {
		return true
	}
	return k.isTarget([]memorySpan{s})
}

// mayChangeSpan reports whether an outstanding request of the queue may change a range.
func (w *workTracker) mayChangeSpan(s memorySpan) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range [][]*trackedRequest{w.send, w.recv} {
		for _, r := range q {
			if !r.visible && slices.ContainsFunc(r.targets, s.overlaps) {
				return true
			}
		}
	}
	return false
}
