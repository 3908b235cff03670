package engine

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestSRDSources tests that the table of sources keeps its lists consistent while sources come and go, and which source
// a new one replaces.
func TestSRDSources(t *testing.T) {
	const hosts, perHost = 5, 4
	host := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
	s := newSRDSources()
	here := &path{from: &endpoint{addr: host(100)}}
	put := func(i int, qpn uint32) *srdSource {
		src := &srdSource{srdOrigin: srdOrigin{host(i), qpn, 1}, path: here}
		s.put(len(s.list), src)
		return src
	}
	check := func(want ...int) { // the number of sources of each host
		t.Helper()
		n := 0
		for i, count := range want {
			h := s.byAddr[host(i)]
			if count == 0 && h == nil {
				continue
			}
			n++
			if h == nil || h.count != count || s.hosts[h.index] != h {
				t.Fatalf("host %d: got %+v, want %d sources and its place in the list", i, h, count)
			}
			listed := 0
			for x := h.oldest; x != nil; x = x.newer {
				listed++
			}
			if listed != count {
				t.Errorf("host %d: got a list of %d sources, want %d", i, listed, count)
			}
		}
		if len(s.hosts) != n || len(s.byAddr) != n {
			t.Errorf("hosts: got a list of %d and %d by address, want %d", len(s.hosts), len(s.byAddr), n)
		}
	}
	all := map[int][]*srdSource{}
	for i := range hosts {
		for q := range uint32(perHost) {
			all[i] = append(all[i], put(i, q))
		}
	}
	check(4, 4, 4, 4, 4)
	for _, i := range []int{1, 4, 0} {
		for _, src := range all[i] {
			s.remove(src)
		}
	}
	check(0, 0, 4, 4, 0)
	put(1, 1)
	check(0, 1, 4, 4, 0)

	const now = 1000 * sourceIdle
	for _, src := range s.byOrigin {
		s.touch(src, now)
	}
	if got := s.replaceable(host(1), now); got == nil || got.addr == host(1) {
		t.Errorf("for a host with one source in use: got %+v, want a source of a host with four", got)
	}
	if got := s.replaceable(host(2), now); got != nil {
		t.Errorf("for a host with as many sources as any: got %+v, want none", got)
	}
	idle := s.byAddr[host(2)].newest
	s.touch(idle, now-2*sourceIdle)
	s.byAddr[host(2)].unlink(idle)
	s.byAddr[host(2)].linkOldest(idle)
	if got := s.replaceable(host(2), now); got != idle {
		t.Errorf("for a host with an idle source: got %+v, want the idle source", got)
	}
}

// TestSRDRelease tests the limits of a program and of its user, and that a queue pair gives back all flows, sources and
// requests that it has counted.
func TestSRDRelease(t *testing.T) {
	d := &Device{flows: userShares{room: 32}, requests: userShares{room: 8}}
	newProgram := func(user string) *srd {
		counts := &objectCounts{most: &[numCounted]uint32{countFlow: 12}}
		return &srd{qp: &QP{dev: d, owner: user, counts: counts}, byPeer: map[srdPeer]*srdFlow{}}
	}
	a, a2, b := newProgram("a"), newProgram("a"), newProgram("b")
	for i, tt := range []struct {
		s    *srd
		want int // the limit of the program, the rest of the user's share, and the share of another user
	}{{a, 12}, {a2, 8}, {b, 5}} {
		for tt.s.charge() {
		}
		if tt.s.charged != tt.want {
			t.Errorf("flows of program %d: got %d, want %d", i, tt.s.charged, tt.want)
		}
	}
	n := 0
	for range 2 * freeRequests {
		if a.chargeRequest() {
			a.requests = append(a.requests, new(srdRequest))
			n++
		}
	}
	if want := freeRequests + 5; n != want {
		t.Errorf("requests of a user: got %d, want %d", n, want)
	}
	for _, s := range []*srd{a, a2, b} {
		s.release()
		if n := s.qp.counts.now[countFlow].Load(); n != 0 {
			t.Errorf("flows after release: got %d, want 0", n)
		}
	}
	if d.flows.all != 0 || d.requests.all != 0 {
		t.Errorf("shares after release: got %d flows and %d requests, want 0", d.flows.all, d.requests.all)
	}
}

// TestSRDHostList compares the list of the sources of a host with a slice.
func TestSRDHostList(t *testing.T) {
	h := &srdHost{}
	r := rand.New(rand.NewPCG(1, 2))
	var list, out []*srdSource
	for i := range uint32(5) {
		out = append(out, &srdSource{own: i})
	}
	for range 500 {
		if at := r.IntN(len(list) + len(out)); at < len(list) {
			h.unlink(list[at])
			out, list = append(out, list[at]), slices.Delete(list, at, at+1)
		} else {
			src := out[at-len(list)]
			out = slices.Delete(out, at-len(list), at-len(list)+1)
			if r.IntN(2) == 0 {
				h.linkNewest(src)
				list = append(list, src)
			} else {
				h.linkOldest(src)
				list = slices.Insert(list, 0, src)
			}
		}
		var up, down []*srdSource
		for src := h.oldest; src != nil && len(up) <= len(list); src = src.newer {
			up = append(up, src)
		}
		for src := h.newest; src != nil && len(down) <= len(list); src = src.older {
			down = slices.Insert(down, 0, src)
		}
		if !slices.Equal(up, list) || !slices.Equal(down, list) {
			t.Fatalf("sources: got %d from the oldest and %d from the newest on, want the same %d", len(up), len(down),
				len(list))
		}
	}
}

// TestSRDSourceOfMost tests that a source in use is replaced only for a host with fewer sources, even after the
// replacement, than another host, which loses the source that it has used least recently.
func TestSRDSourceOfMost(t *testing.T) {
	const now = 1000 * sourceIdle
	few, many := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for n, replaced := range map[uint32]bool{3: false, 4: false, 5: true} {
		s := newSRDSources()
		here := &path{from: &endpoint{}}
		put := func(addr netip.Addr, qpn uint32) *srdSource {
			src := &srdSource{srdOrigin: srdOrigin{addr, qpn, 1}, path: here}
			s.put(len(s.list), src)
			s.touch(src, now)
			return src
		}
		for qpn := range uint32(3) {
			put(few, qpn)
		}
		first, second := put(many, 0), put(many, 1)
		for qpn := range n - 2 {
			put(many, 2+qpn)
		}
		s.touch(first, now)
		h, listed := s.byAddr[many], 0
		for src := h.oldest; src != nil && listed <= h.count; src = src.newer {
			listed++
		}
		if h.newest != first || h.oldest != second || listed != int(n) {
			t.Errorf("sources of a host: got %d, want %d with the one in use as the newest", listed, n)
		}
		want := second
		if !replaced {
			want = nil
		}
		if got := s.replaceable(few, now); got != want {
			t.Errorf("for 3 sources, with %d of another host: got %+v, want %+v", n, got, want)
		}
		before := len(s.latest)
		s.remove(first)
		if len(s.latest) != before-1 || s.latest[second.pair()] != second {
			t.Errorf("latest sources after a removal: got %d, want %d without the removed one", len(s.latest), before-1)
		}
	}
}
