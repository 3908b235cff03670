package umem

import (
	"testing"
	"time"
)

// TestRecentMappingsAreCached checks that the cache stores all mappings that one message uses, each until its time
// limit.
func TestRecentMappingsAreCached(t *testing.T) {
	const page = 4096
	var r recentMappings
	now := time.Since(clockBase)
	n := uint64(len(r.places))
	for i := range n {
		r.record(mapping{start: 2 * i * page, end: (2*i + 1) * page}, now+time.Hour)
	}
	for i := range n {
		at := 2 * i * page
		if !r.covers(at, at+page) || !r.covers(at+1, at+2) {
			t.Errorf("mapping %d of %d: got it not cached, want it cached", i, n)
		}
		if r.covers(at, at+page+1) || r.covers(at+page, at+page+1) {
			t.Errorf("range after mapping %d: got it covered, want it not covered", i)
		}
	}
	r.record(mapping{start: 100 * page, end: 101 * page}, now)
	if r.covers(100*page, 101*page) {
		t.Error("mapping after its time limit: got it covered, want it dropped")
	}
	known := 0
	for i := range n {
		if r.covers(2*i*page, (2*i+1)*page) {
			known++
		}
	}
	if known != int(n)-1 {
		t.Errorf("cached mappings after one more: got %d of %d, want all but one", known, n)
	}
}
