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

// GIDTable is the GID table of a port whose GIDs are the addresses of a network interface. A driver has one for each such port,
// brings it up to date when the interface changes, and answers QueryGID from it; the midlayer takes references from it
// (GIDDriver). Its methods may not sleep, and may be called from any context. (struct ib_gid_table; core/roce_gid_mgmt.c)
//
// A place in the table stands for one GID as long as anything refers to it, an address handle, a queue pair or a GIDRef:
//
//	empty --Update: a new address--> valid --Update: it has gone--> empty
//	                                 |   ^                            ^
//	         it has gone, is referred to |: it has come back          |
//	                                 v   |                            |
//	                               leaving -----the last reference----+
//
// A place that is leaving looks empty, and no other GID gets it.
type GIDTable struct {
	size int

	mu    sync.Mutex
	slots []gidSlot
	shown atomic.Pointer[[]GIDEntry] // of the slots, as queries see them; changed with mu held
}

type gidSlot struct {
	entry   GIDEntry // zero: empty
	refs    int
	leaving bool
}

// NewGIDTable returns a table of size places, all of them empty. (ib_gid_table_setup_one)
func NewGIDTable(size int) *GIDTable {
	t := &GIDTable{size: size}
	t.shown.Store(&[]GIDEntry{})
	return t
}

// Len is the number of places (PortAttr.GIDTableLen).
func (t *GIDTable) Len() int { return t.size }

// Entries are the places up to the last one that has ever been used; an empty one is zero. They are not to be changed, and do
// not change: the next Update makes others.
func (t *GIDTable) Entries() []GIDEntry { return *t.shown.Load() }

// Query returns one place, zero if it is empty. EINVAL outside of the table. It is what QueryGID of a driver is made of. It may
// not sleep.
func (t *GIDTable) Query(index int) (GIDEntry, error) {
	if index < 0 || index >= t.size {
		return GIDEntry{}, fmt.Errorf("gid %d: the table has %d places: %w", index, t.size, syscall.EINVAL)
	}
	if e := t.Entries(); index < len(e) {
		return e[index], nil
	}
	return GIDEntry{}, nil
}

// Update brings the table up to an interface and those of its addresses that the device uses, as RoCE v2, and returns how many
// places changed, for each of which the driver dispatches EventGIDChange. Place 0 has the default GID, which derives from the
// MAC address. The GIDs that stay keep their places; an address that has come gets the place that it had, if that is kept for
// it, or the first empty one, IPv4 before IPv6. What has no room is left out. It may not sleep.
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
	var want []GID // default GID aside; its own address needs no other place
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
			changed += s.set(entry(def))
		case g.IsZero():
		case i > 0 && slices.Contains(want, g) && !placed[g]:
			placed[g] = true
			changed += s.set(entry(g))
		case s.clear():
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
		changed += t.slots[free].set(entry(g))
	}
	t.show()
	return changed
}

// set makes the place valid, and tells by 1 or 0 whether that changes what is seen of it.
func (s *gidSlot) set(e GIDEntry) int {
	if s.entry == e && !s.leaving {
		return 0
	}
	s.entry, s.leaving = e, false
	return 1
}

// clear empties the place, now or when nothing refers to it, and reports whether that changes what is seen of it.
func (s *gidSlot) clear() bool {
	if s.leaving {
		return false
	}
	if s.leaving = s.refs > 0; !s.leaving {
		s.entry = GIDEntry{}
	}
	return true
}

// show is called with mu held.
func (t *GIDTable) show() {
	e := make([]GIDEntry, len(t.slots))
	for i, s := range t.slots {
		if !s.leaving {
			e[i] = s.entry
		}
	}
	t.shown.Store(&e)
}

// gidHold is a reference to a place of a table.
type gidHold struct {
	table *GIDTable
	index int
	entry GIDEntry
}

// hold refers to a place. EINVAL if it is empty, or leaving. (rdma_get_gid_attr)
func (t *GIDTable) hold(index int) (*gidHold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if index < 0 || index >= len(t.slots) || t.slots[index].leaving || t.slots[index].entry.GID.IsZero() {
		return nil, fmt.Errorf("gid %d: there is none at this place of the table: %w", index, syscall.EINVAL)
	}
	t.slots[index].refs++
	return &gidHold{t, index, t.slots[index].entry}, nil
}

// put ends the reference; nil has none. (rdma_put_gid_attr)
func (h *gidHold) put() {
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

// holdGID refers to the source of an address vector. Without a GID table there is nothing to refer to: what is wrong then is
// the driver's to say.
func (d *Device) holdGID(a *AHAttr) (*gidHold, error) {
	drv, ok := As[GIDDriver](d.drv)
	if !ok || !a.HasGRH {
		return nil, nil
	}
	t := drv.GIDTable(int(a.Port))
	if t == nil {
		return nil, nil
	}
	return t.hold(int(a.GRH.SGIDIndex))
}

// GIDRef is a reference to a GID: as long as there is one, no other GID gets its place in the table, so that an address vector
// with this index never comes to name another source. (struct ib_gid_attr)
type GIDRef struct {
	object
	GIDEntry
	Port, Index int
	held        *gidHold // nil: the driver's table does not change
}

// GetGID refers to a GID, which must be put before the client's Remove returns. EINVAL if there is none at this place. It may
// sleep. (rdma_get_gid_attr)
func (d *Device) GetGID(port, index int) (*GIDRef, error) {
	defer d.sleeps("Device.GetGID").leave()
	fail := func(err error) (*GIDRef, error) {
		return nil, fmt.Errorf("get gid %d of port %d of %s: %w", index, port, d.name, err)
	}
	if err := d.begin(); err != nil {
		return fail(err)
	}
	defer d.end()
	r := &GIDRef{Port: port, Index: index}
	var err error
	if drv, ok := As[GIDDriver](d.drv); ok && drv.GIDTable(port) != nil {
		if r.held, err = drv.GIDTable(port).hold(index); err == nil {
			r.GIDEntry = r.held.entry
		}
	} else if r.GIDEntry, err = d.drv.QueryGID(port, index); err == nil && r.GID.IsZero() {
		err = fmt.Errorf("it is empty: %w", syscall.EINVAL)
	}
	if err != nil {
		return fail(err)
	}
	r.bind(d, kindGID, nil)
	if err := r.born(r.unhold); err != nil {
		return fail(err)
	}
	return r, nil
}

func (r *GIDRef) unhold() error {
	r.held.put()
	return nil
}

// Put ends the reference. EINVAL the second time. It may not sleep. (rdma_put_gid_attr)
func (r *GIDRef) Put() error {
	f, err := r.atomically("GIDRef.Put")
	defer f.leave()
	if err == nil {
		err = r.kill(r.unhold)
	}
	if err != nil {
		return fmt.Errorf("put gid %d of port %d of %s: %w", r.Index, r.Port, r.dev.name, err)
	}
	return nil
}
