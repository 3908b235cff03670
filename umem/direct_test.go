package umem_test

import (
	"testing"

	"verbena/umem"
)

// spaceWithWindows is a Space. A part of its memory is a Local.
type spaceWithWindows struct{ umem.Space }

func (w spaceWithWindows) Windows() *umem.Local { return w.Space.(*umem.Local) }

// TestDirectReturnsLocalMemory checks that Direct returns the memory of a region if it lies in one buffer of a Local.
// The test also checks that ranges do not wrap around.
func TestDirectReturnsLocalMemory(t *testing.T) {
	local := umem.NewLocal()
	buf := make([]byte, 3<<12)
	addr, err := local.Add(buf)
	if err != nil {
		t.Fatal(err)
	}
	get := func(s umem.Space, list ...umem.Range) *umem.Region {
		t.Helper()
		r, err := umem.GetList(s, nil, list, 0x1000, true)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	all := umem.Range{Addr: addr, Length: uint64(len(buf))}
	r := get(local, all)
	for _, c := range []struct {
		name         string
		r            *umem.Region
		iova, length uint64
		want         int // offset in buf; -1 means no memory
	}{
		{"all", r, 0x1000, uint64(len(buf)), 0},
		{"a part", r, 0x1010, 5, 0x10},
		{"a window", get(spaceWithWindows{local}, all), 0x1010, 5, 0x10},
		{"nothing", r, 0x1010, 0, -1},
		{"before", r, 0xfff, 5, -1},
		{"beyond", r, 0x1010, uint64(len(buf)), -1},
		{"wrapped", get(struct{ umem.Space }{local}, all), 0x1010, 5, -1},
		{"embedded", get(struct{ *umem.Local }{local}, all), 0x1010, 5, -1},
		{"a list", get(local, umem.Range{Addr: addr, Length: 10}, umem.Range{Addr: addr + 10, Length: 10}), 0x1000, 5, -1},
	} {
		mem := c.r.Direct(c.iova, c.length)
		if got := mem != nil; got != (c.want >= 0) {
			t.Errorf("%s: got memory: %t", c.name, got)
		} else if got && (&mem[0] != &buf[c.want] || uint64(len(mem)) != c.length) {
			t.Errorf("%s: got other memory", c.name)
		}
	}
	onDemand, err := umem.OnDemand(local, 0, umem.ImplicitLength, 0)
	if err != nil {
		t.Fatal(err)
	}
	if onDemand.Direct(addr, 5) == nil || onDemand.Direct(addr-1, 5) != nil {
		t.Error("Direct on demand: got wrong memory, want it only within the buffer")
	}
	if err := local.Remove(addr); err != nil {
		t.Fatal(err)
	}
	if r.Direct(0x1000, 5) != nil {
		t.Error("Direct after the removal of the buffer: got memory, want none")
	}
}
