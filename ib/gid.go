package ib

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/netdev"
	"verbena/roce"
)

// GIDTable is the GID table of a port. Its GIDs are the addresses of a network interface. A driver has one table for
// each such port, updates the table when the interface changes, and uses the table for QueryGID. The midlayer takes
// references to the entries (GIDDriver). The methods may not sleep, and may be called from any context. (struct
// ib_gid_table; core/roce_gid_mgmt.c)
//
// An index of the table refers to the same GID while an address handle, a queue pair or a GIDRef refers to the entry:
//
//	empty --Update: address added--> valid --Update: address removed--> empty
//	                                 |   ^                                ^
//	       address removed, refs > 0 |   | address added again            |
//	                                 v   |                                |
//	                               leaving -------- last reference -------+
//
// An entry in the state leaving appears empty to queries, and its index is not reused.
type GIDTable struct {
	size      int
	addresses bool // index 0 is the first address, not the default GID

	mu    sync.Mutex
	slots []gidSlot
	shown atomic.Pointer[[]GIDEntry] // the entries that queries see; stored with mu held
}

type gidSlot struct {
	entry   GIDEntry // zero: empty
	refs    int
	leaving bool
}

// NewGIDTable returns a table of size empty entries. (ib_gid_table_setup_one)
func NewGIDTable(size int) *GIDTable {
	t := &GIDTable{size: size}
	t.shown.Store(&[]GIDEntry{})
	return t
}

// NewAddressGIDTable returns a table of one entry, which Update sets to the first address of the interface, as EFA has
// it. (efa_query_gid)
func NewAddressGIDTable() *GIDTable {
	t := NewGIDTable(1)
	t.addresses = true
	return t
}

// Len returns the number of entries (PortAttr.GIDTableLen). Len may not sleep.
func (t *GIDTable) Len() int { return t.size }

// Entries returns the entries up to the highest index used so far. An empty entry is zero. The slice is immutable:
// Update stores a new slice. Entries may not sleep.
func (t *GIDTable) Entries() []GIDEntry { return *t.shown.Load() }

// Query returns one entry, for a driver's QueryGID. An empty entry is zero. Query returns EINVAL for an index outside
// the table. Query may not sleep.
func (t *GIDTable) Query(index int) (GIDEntry, error) {
	if index < 0 || index >= t.size {
		return GIDEntry{}, fmt.Errorf("GID index %d exceeds the table of %d entries: %w", index, t.size, syscall.EINVAL)
	}
	if e := t.Entries(); index < len(e) {
		return e[index], nil
	}
	return GIDEntry{}, nil
}

// Update sets the entries to the default GID of an interface and to the GIDs of addrs, as RoCE v2. Update returns the
// number of changed entries. The driver dispatches EventGIDChange for each changed entry. Index 0 is the default GID,
// derived from the MAC address. A GID that is already in the table keeps its index. A new GID takes the first empty
// index, IPv4 before IPv6. GIDs beyond the capacity of the table are omitted. Update may not sleep.
// (enum_all_gids_of_dev_cb)
func (t *GIDTable) Update(ifi netdev.Interface, addrs []netip.Addr) (changed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.slots) == 0 {
		t.slots = make([]gidSlot, 1)
	}
	entry := func(g GID) GIDEntry {
		return GIDEntry{GID: g, Type: GIDTypeRoCEv2, Netdev: ifi.Name, IfIndex: ifi.Index}
	}
	var mac [6]byte
	copy(mac[:], ifi.MAC)
	def := roce.LinkLocalGID(mac)
	if t.addresses && len(addrs) > 0 {
		def = GIDFromAddr(addrs[0])
	}
	var want []GID // without the default GID, which has index 0
	for _, v4 := range []bool{true, false} {
		for _, a := range addrs {
			if g := GIDFromAddr(a); a.Is4() == v4 && g != def && !slices.Contains(want, g) {
				want = append(want, g)
			}
		}
	}
	placed := map[GID]bool{}
	for i := range t.slots {
		s := &t.slots[i]
		switch g := s.entry.GID; {
		case i == 0 && (g == def || s.refs == 0):
			changed += s.setEntry(entry(def))
		case g.IsZero():
		case i > 0 && slices.Contains(want, g) && !placed[g]:
			placed[g] = true
			changed += s.setEntry(entry(g))
		case s.clearEntry():
			changed++
		}
	}
	free := 1
	for _, g := range want {
		if placed[g] {
			continue
		}
		for free < len(t.slots) && !t.slots[free].entry.GID.IsZero() {
			free++
		}
		if free == t.size {
			break
		}
		if free == len(t.slots) {
			t.slots = append(t.slots, gidSlot{})
		}
		changed += t.slots[free].setEntry(entry(g))
	}
	t.publishEntries()
	return changed
}

// setEntry stores a valid entry. setEntry returns 1 if queries see a change, otherwise 0.
func (s *gidSlot) setEntry(e GIDEntry) int {
	if s.entry == e && !s.leaving {
		return 0
	}
	s.entry, s.leaving = e, false
	return 1
}

// clearEntry empties the entry, either at once or after the release of the last reference. clearEntry reports whether
// queries see a change.
func (s *gidSlot) clearEntry() bool {
	if s.leaving {
		return false
	}
	if s.leaving = s.refs > 0; !s.leaving {
		s.entry = GIDEntry{}
	}
	return true
}

//verbena:held mu
func (t *GIDTable) publishEntries() {
	e := make([]GIDEntry, len(t.slots))
	for i, s := range t.slots {
		if !s.leaving {
			e[i] = s.entry
		}
	}
	t.shown.Store(&e)
}

// gidTableRef is a reference to an entry of a table.
type gidTableRef struct {
	table *GIDTable
	index int
	entry GIDEntry
}

// takeGIDSlotRef takes a reference to an entry. takeGIDSlotRef returns EINVAL if the entry is empty or leaving.
// (rdma_get_gid_attr)
func (t *GIDTable) takeGIDSlotRef(index int) (*gidTableRef, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if index < 0 || index >= len(t.slots) || t.slots[index].leaving || t.slots[index].entry.GID.IsZero() {
		return nil, fmt.Errorf("GID index %d is empty: %w", index, syscall.EINVAL)
	}
	t.slots[index].refs++
	return &gidTableRef{t, index, t.slots[index].entry}, nil
}

// release releases the reference, if h is not nil. (rdma_put_gid_attr)
func (h *gidTableRef) release() {
	if h == nil {
		return
	}
	h.table.mu.Lock()
	defer h.table.mu.Unlock()
	s := &h.table.slots[h.index]
	if s.refs--; s.refs == 0 && s.leaving {
		*s = gidSlot{}
	}
}

// takeGIDRef takes a reference to the source GID of an address vector. takeGIDRef returns nil if the driver has no
// GIDTable. In that case the driver checks the index.
func (d *Device) takeGIDRef(a *AHAttr) (*gidTableRef, error) {
	drv, ok := As[GIDDriver](d.drv)
	if !ok || !a.HasGRH {
		return nil, nil
	}
	t := drv.GIDTable(int(a.Port))
	if t == nil {
		return nil, nil
	}
	return t.takeGIDSlotRef(int(a.GRH.SGIDIndex))
}

// GIDRef is a reference to a GID. The index is not reused while the reference exists. The source of an address vector
// therefore cannot change. (struct ib_gid_attr)
type GIDRef struct {
	object
	GIDEntry
	Port, Index int
	held        *gidTableRef // nil if the driver has no GIDTable: its GIDs never change
}

// GetGID returns a reference to a GID. The client must release the reference with Put before its Remove returns. GetGID
// returns EINVAL if the entry is empty. GetGID may sleep. (rdma_get_gid_attr)
func (d *Device) GetGID(port, index int) (*GIDRef, error) {
	defer d.enterSleeping("Device.GetGID").leave()
	fail := func(err error) (*GIDRef, error) {
		return nil, fmt.Errorf("get gid of port %d of %s: %w", port, d.name, err)
	}
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	r := &GIDRef{Port: port, Index: index}
	var err error
	if drv, ok := As[GIDDriver](d.drv); ok && drv.GIDTable(port) != nil {
		if r.held, err = drv.GIDTable(port).takeGIDSlotRef(index); err == nil {
			r.GIDEntry = r.held.entry
		}
	} else if r.GIDEntry, err = d.drv.QueryGID(port, index); err == nil && r.GID.IsZero() {
		err = fmt.Errorf("GID index %d is empty: %w", index, syscall.EINVAL)
	}
	if err != nil {
		return fail(err)
	}
	r.initObject(d, kindGID, r, nil)
	if err := r.finishCreate(r.releaseRef); err != nil {
		return fail(err)
	}
	return r, nil
}

func (r *GIDRef) releaseRef() error {
	r.held.release()
	return nil
}

// Put releases the reference. A second call returns EINVAL. Put may not sleep. (rdma_put_gid_attr)
func (r *GIDRef) Put() error {
	f, err := r.enterAtomicCall("GIDRef.Put")
	defer f.leave()
	if err == nil {
		err = r.destroyWithoutSleep(r.releaseRef)
	}
	if err != nil {
		return fmt.Errorf("put gid %d of port %d of %s: %w", r.Index, r.Port, r.dev.name, err)
	}
	return nil
}
