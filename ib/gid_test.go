package ib

import (
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"verbena/netdev"
	"verbena/roce"
)

func parseAddrs(list string) (a []netip.Addr) {
	for _, s := range strings.Fields(list) {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

// formatEntries returns the addresses of the table's entries, with "-" for an empty entry.
func formatEntries(t *GIDTable) string {
	var s []string
	for _, e := range t.Entries() {
		if e.GID.IsZero() {
			s = append(s, "-")
			continue
		}
		s = append(s, netip.AddrFrom16(e.GID).Unmap().String())
	}
	return strings.Join(s, " ")
}

// TestGIDTableUpdateSequence applies a sequence of updates to one table.
func TestGIDTableUpdateSequence(t *testing.T) {
	const mac, def = "\x02\x00\x00\x00\x00\x01", "fe80::ff:fe00:1"
	const mac2, def2 = "\x02\x00\x00\x00\x00\x02", "fe80::ff:fe00:2"
	held := map[int]*gidTableRef{}
	table := NewGIDTable(4)
	if got := formatEntries(table); got != "" {
		t.Errorf("new table: got %q, want none", got)
	}
	for _, step := range []struct {
		name    string
		mac     string
		addrs   string
		hold    int // index to take a reference to before the update; put is the index to release; 0 means none
		put     int
		want    string
		changed int
	}{
		{name: "IPv4 comes before IPv6", addrs: "2001:db8::1 10.0.0.1", want: def + " 10.0.0.1 2001:db8::1", changed: 3},
		{name: "nothing changes", addrs: "10.0.0.1 2001:db8::1", want: def + " 10.0.0.1 2001:db8::1"},
		{name: "the address of the default GID has no second index", addrs: "10.0.0.1 2001:db8::1 " + def, want: def +
			" 10.0.0.1 2001:db8::1"},
		{name: "one GID is removed, the others keep their index",
			addrs: "2001:db8::1", want: def + " - 2001:db8::1", changed: 1},
		{name: "a new GID gets the free index",
			addrs: "2001:db8::1 10.0.0.2", want: def + " 10.0.0.2 2001:db8::1", changed: 1},
		{name: "no room for the last", addrs: "2001:db8::1 10.0.0.2 10.0.0.3 10.0.0.4", want: def +
			" 10.0.0.2 2001:db8::1 10.0.0.3", changed: 1},
		{name: "a GID with a reference is removed", hold: 1,
			addrs: "2001:db8::1", want: def + " - 2001:db8::1 -", changed: 2},
		{name: "a new GID does not get a referenced index",
			addrs: "2001:db8::1 10.0.0.5", want: def + " - 2001:db8::1 10.0.0.5",
			changed: 1},
		{name: "a full table omits a new GID", addrs: "2001:db8::1 10.0.0.5 10.0.0.6", want: def + " - 2001:db8::1 10.0.0.5"},
		{name: "a removed GID returns to its index",
			addrs: "2001:db8::1 10.0.0.5 10.0.0.2", want: def + " 10.0.0.2 2001:db8::1 10.0.0.5",
			changed: 1},
		{name: "the GID is removed again", addrs: "2001:db8::1 10.0.0.5", want: def + " - 2001:db8::1 10.0.0.5", changed: 1},
		{name: "without a reference the index is empty", put: 1, addrs: "2001:db8::1 10.0.0.5 10.0.0.6",
			want: def + " 10.0.0.6 2001:db8::1 10.0.0.5", changed: 1},
		{name: "another MAC address", mac: mac2, want: def2 + " - - -", changed: 4},
		{name: "the default GID has a reference", hold: -1, mac: mac, want: "- - - -", changed: 1},
		{name: "the reference prevents reuse", mac: mac, want: "- - - -"},
		{name: "the release allows reuse", put: -1, mac: mac, want: def + " - - -", changed: 1},
	} {
		place := func(n int) int { return max(n, 0) } // -1 stands for index 0
		if step.hold != 0 {
			h, err := table.takeGIDSlotRef(place(step.hold))
			must(t, err)
			held[step.hold] = h
		}
		if step.put != 0 {
			held[step.put].release()
		}
		ifi := netdev.Interface{Name: "eth0", Index: 3, MAC: []byte(mac)}
		if step.mac != "" {
			ifi.MAC = []byte(step.mac)
		}
		before := table.Entries()
		kept := slices.Clone(before)
		changed := table.Update(ifi, parseAddrs(step.addrs))
		if got := formatEntries(table); got != step.want || changed != step.changed {
			t.Errorf("%s: got %q, %d changes, want %q, %d", step.name, got, changed, step.want, step.changed)
		}
		if !slices.Equal(before, kept) {
			t.Errorf("%s: the slice of an earlier Entries changed, want it unchanged", step.name)
		}
	}
	if e, err := table.Query(0); err != nil || e.Netdev != "eth0" || e.IfIndex != 3 || e.Type != GIDTypeRoCEv2 {
		t.Errorf("query: got %+v, %v", e, err)
	}
	for _, i := range []int{-1, 4} {
		_, err := table.Query(i)
		wantErrno(t, "query outside", err, syscall.EINVAL)
		_, err = table.takeGIDSlotRef(i)
		wantErrno(t, "hold outside", err, syscall.EINVAL)
	}
	_, err := table.takeGIDSlotRef(1)
	wantErrno(t, "hold an empty entry", err, syscall.EINVAL)
}

// TestAddressGIDTable tests a table of one entry, which follows the first address and not the MAC address.
func TestAddressGIDTable(t *testing.T) {
	g := NewAddressGIDTable()
	for _, c := range []struct {
		addrs, want string
		changed     int
	}{{"10.0.0.1", "10.0.0.1", 1}, {"10.0.0.1 10.0.0.2", "10.0.0.1", 0}, {"fd00::1 10.0.0.1", "fd00::1", 1}} {
		changed := g.Update(netdev.Interface{Name: "eth0", MAC: []byte("\x02\x00\x00\x00\x00\x01")}, parseAddrs(c.addrs))
		if got := formatEntries(g); got != c.want || changed != c.changed || g.Len() != 1 {
			t.Errorf("%s: got %s and %d changes in %d entries, want %s and %d in one", c.addrs, got, changed, g.Len(), c.want,
				c.changed)
		}
	}
}

// TestGIDPlaceIsKept applies random updates. An index with a reference must keep its GID, and no GID may have two
// indexes.
func TestGIDPlaceIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 5
		table := NewGIDTable(size)
		type ref struct {
			*gidTableRef
			gid GID
		}
		var refs []ref
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				var list []netip.Addr
				for _, n := range rapid.SliceOfN(rapid.IntRange(1, 7), 0, 6).Draw(t, "addresses") {
					list = append(list, netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}))
				}
				mac := []byte{2, 0, 0, 0, 0, byte(rapid.IntRange(0, 1).Draw(t, "mac"))}
				before := formatEntries(table)
				changed := table.Update(netdev.Interface{Name: "eth0", MAC: mac}, list)
				if (changed == 0) != (before == formatEntries(table)) && len(table.Entries()) == len(strings.Fields(before)) {
					t.Fatalf("update from %q to %q: got %d changes, want 0 exactly if the tables are equal",
						before, formatEntries(table),
						changed)
				}
				if again := table.Update(netdev.Interface{Name: "eth0", MAC: mac}, list); again != 0 {
					t.Fatalf("repeated update: got %d changes, want 0", again)
				}
			case 2:
				i := rapid.IntRange(0, size-1).Draw(t, "hold")
				h, err := table.takeGIDSlotRef(i)
				e, _ := table.Query(i)
				if (err == nil) == e.GID.IsZero() {
					t.Fatalf("hold of %v: %v", e.GID, err)
				}
				if err == nil {
					refs = append(refs, ref{h, e.GID})
				}
			case 3:
				if len(refs) > 0 {
					i := rapid.IntRange(0, len(refs)-1).Draw(t, "put")
					refs[i].release()
					refs = slices.Delete(refs, i, i+1)
				}
			}
			for _, r := range refs {
				if e, _ := table.Query(r.index); !e.GID.IsZero() && e.GID != r.gid {
					t.Fatalf("referenced index %d: got %v, want %v", r.index, e.GID, r.gid)
				}
			}
			seen := map[GID]bool{}
			for _, e := range table.Entries() {
				if !e.GID.IsZero() && seen[e.GID] {
					t.Fatalf("%v has two indexes: %s", e.GID, formatEntries(table))
				}
				seen[e.GID] = true
			}
		}
		for _, r := range refs {
			r.release()
		}
		for i := range table.slots {
			if s := table.slots[i]; s.refs != 0 || s.leaving {
				t.Fatalf("index %d after the last reference: got %+v, want an empty entry", i, s)
			}
		}
	})
}

// gidDriver has a GID table on port 1.
type gidDriver struct {
	fullDriver
	table *GIDTable
}

func (d gidDriver) QueryGID(port, i int) (GIDEntry, error) { return d.table.Query(i) }

func (d gidDriver) GIDTable(port int) *GIDTable {
	if port != 1 {
		return nil
	}
	return d.table
}

// TestGIDReferences checks that address handles, queue pairs and consumers prevent reuse of the index of their GID.
func TestGIDReferences(t *testing.T) {
	ifi := netdev.Interface{Name: "eth0", MAC: []byte{2, 0, 0, 0, 0, 1}}
	route := func(index uint8) AHAttr {
		return AHAttr{HasGRH: true, Port: 1, GRH: GlobalRoute{DGID: GID{15: 1}, SGIDIndex: index}}
	}
	toRTR := QPAttrState | QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer
	attr := func(index uint8) QPAttr { return QPAttr{State: QPRTR, AH: route(index), PathMTU: MTU1024, DestQPN: 1} }
	for _, test := range []struct {
		name string
		// take takes a reference to index 1. take returns a function that releases the reference.
		take func(t *testing.T, b *testBench) (put func() error)
	}{
		{"a consumer", func(t *testing.T, b *testBench) func() error {
			r, err := b.dev.GetGID(1, 1)
			must(t, err)
			if r.GID != GIDFromAddr(parseAddrs("10.0.0.1")[0]) || r.Port != 1 || r.Index != 1 || b.dev.Objects().GID != 1 {
				t.Errorf("got %+v, %v", r, b.dev.Objects())
			}
			return func() error {
				err := r.Put()
				wantErrno(t, "put twice", r.Put(), syscall.EINVAL)
				return err
			}
		}},
		{"an address handle", func(t *testing.T, b *testBench) func() error {
			a := route(1)
			ah, err := b.pd.CreateAH(&a)
			must(t, err)
			return ah.Destroy
		}},
		{"an address handle, later", func(t *testing.T, b *testBench) func() error {
			a := route(2)
			ah, err := b.pd.CreateAH(&a)
			must(t, err)
			a = route(1)
			must(t, ah.Modify(&a))
			a = route(3)
			wantErrno(t, "modify to an empty index", ah.Modify(&a), syscall.EINVAL)
			return ah.Destroy
		}},
		{"an address handle, until it is modified", func(t *testing.T, b *testBench) func() error {
			a := route(1)
			ah, err := b.pd.CreateAH(&a)
			must(t, err)
			t.Cleanup(func() { must(t, ah.Destroy()) })
			return func() error {
				a := route(2)
				return ah.Modify(&a)
			}
		}},
		{"a queue pair", func(t *testing.T, b *testBench) func() error {
			qp, err := b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq, Type: QPTypeRC})
			must(t, err)
			must(t, qp.Modify(QPAttr{State: QPInit, Port: 1}, QPAttrState|QPAttrPKeyIndex|QPAttrPort|QPAttrAccessFlags))
			wantErrno(t, "an empty place", qp.Modify(attr(3), toRTR), syscall.EINVAL)
			b.drv.fail = func(what string) error {
				if what == "modify qp" {
					return syscall.EPERM
				}
				return nil
			}
			wantErrno(t, "the driver refuses", qp.Modify(attr(2), toRTR), syscall.EPERM)
			b.drv.fail = nil
			must(t, qp.Modify(attr(1), toRTR))
			must(t, qp.Modify(QPAttr{State: QPReset}, QPAttrState)) // a later transition may use the GID again
			return qp.Destroy
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := NewGIDTable(8)
			table.Update(ifi, parseAddrs("10.0.0.1 10.0.0.2"))
			b := newBenchWithGIDTable(t, gidDriver{fullDriver{&fakeDriver{}}, table})
			t.Cleanup(func() { b.destroyAll(t) })
			put := test.take(t, b)
			table.Update(ifi, parseAddrs("10.0.0.2 10.0.0.3"))
			if got := formatEntries(table); !strings.HasSuffix(got, " - 10.0.0.2 10.0.0.3") {
				t.Errorf("with a reference: got %q", got)
			}
			must(t, put())
			table.Update(ifi, parseAddrs("10.0.0.2 10.0.0.3 10.0.0.4"))
			if got := formatEntries(table); !strings.HasSuffix(got, " 10.0.0.4 10.0.0.2 10.0.0.3") {
				t.Errorf("table after the last reference: got %q, want 10.0.0.4 10.0.0.2 10.0.0.3 at the end", got)
			}
		})
	}
}

// TestGIDReferencesWorkWithoutGIDTable checks references to GIDs of a driver without a GIDTable.
func TestGIDReferencesWorkWithoutGIDTable(t *testing.T) {
	b := newFullBench(t)
	r, err := b.dev.GetGID(2, 1)
	must(t, err)
	if want := (GID{0: 0xfe, 1: 0x80, 13: 2, 15: 1}); r.GID != want {
		t.Errorf("got %v, want %v", r.GID, want)
	}
	must(t, r.Put())
	b.dev.handle.SetError()
	_, err = b.dev.GetGID(1, 0)
	wantErrno(t, "on a device in error", err, syscall.EIO)
	b.destroyAll(t)
	_, err = b.dev.GetGID(1, 0)
	wantErrno(t, "on a device that is gone", err, syscall.ENODEV)
}

// TestDefaultGIDIsFromMAC checks the constants of this file.
func TestDefaultGIDIsFromMAC(t *testing.T) {
	if got := roce.LinkLocalGID([6]byte{2, 0, 0, 0, 0, 1}).Addr().String(); got != "fe80::ff:fe00:1" {
		t.Errorf("default GID: got %s", got)
	}
}
