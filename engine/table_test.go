package engine

import (
	"slices"
	"testing"

	"verbena/ib"
	"verbena/umem"
)

// TestTableAll tests that all returns the objects of claimed numbers, below the first, and of reserved numbers.
func TestTableAll(t *testing.T) {
	var tab table[int]
	tab.init(16, 64)
	numbers := []uint32{1, 9}
	for _, n := range numbers {
		if !tab.claim(n) {
			t.Fatalf("claim %d: it is taken", n)
		}
	}
	if tab.claim(9) {
		t.Error("9 can be claimed twice")
	}
	for range 3 {
		n, ok := tab.reserve()
		if !ok {
			t.Fatal("reserve: no number is left")
		}
		numbers = append(numbers, n)
	}
	for _, n := range numbers {
		v := int(n)
		tab.set(n, &v)
	}
	listed := func() (list []uint32) {
		for v := range tab.all() {
			list = append(list, uint32(*v))
		}
		return list
	}
	if got := listed(); !slices.Equal(got, numbers) {
		t.Errorf("all: got %v, want %v", got, numbers)
	}
	tab.drop(9)
	tab.drop(numbers[3])
	if got, want := listed(), []uint32{1, numbers[2], numbers[4]}; !slices.Equal(got, want) {
		t.Errorf("all, after two were dropped: got %v, want %v", got, want)
	}
}

// TestTableNumbers tests that numbers begin after the skipped ones, count up and wrap at the limit, and that no number
// outside of the table has an object.
func TestTableNumbers(t *testing.T) {
	var x table[int]
	x.init(10, 20)
	x.skip(7)
	for i := range uint32(10) {
		want := 10 + (7+i)%10
		n, ok := x.reserve()
		if !ok || n != want {
			t.Errorf("reserve: got %d, %v, want %d", n, ok, want)
		}
		x.set(n, new(int))
	}
	if n, ok := x.reserve(); ok {
		t.Errorf("reserve of a full table: got %d, want none", n)
	}
	for _, n := range []uint32{0, 9, 20, tableMax - 1, tableMax, tableMax + 1, 1<<32 - 1} {
		if x.get(n) != nil {
			t.Errorf("get(%d): got an object, want nil", n)
		}
	}
}

// TestTableReuse tests that each number is allocated again exactly once after many numbers were dropped.
func TestTableReuse(t *testing.T) {
	const first, limit = 5, 4000
	var x table[int]
	x.init(first, limit)
	used := map[uint32]bool{}
	reserve := func(n int) {
		t.Helper()
		for range n {
			k, ok := x.reserve()
			if !ok || used[k] || k < first || k >= limit {
				t.Fatalf("reserve with %d numbers in use: got %d and %v, want a free number", len(used), k, ok)
			}
			used[k] = true
			x.set(k, new(int))
		}
	}
	drop := func(n int) {
		for k := range used {
			if n--; n < 0 {
				break
			}
			x.drop(k)
			delete(used, k)
		}
	}
	reserve(limit - first)
	for range 3 {
		drop(3000)
		reserve(2000)
		drop(500)
		reserve(1500)
	}
	if n, ok := x.reserve(); ok {
		t.Errorf("reserve of a full table: got %d, want none", n)
	}
}

// TestNumbersReturn tests that the number of each destroyed object is allocated again.
func TestNumbersReturn(t *testing.T) {
	b := newBench(t, setup{})
	dev := b.a.dev
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 64))
	check(t, err)
	const rounds = 1000
	for _, c := range []struct {
		name string
		used func() uint32
		once func() error // creates an object, and destroys it
	}{
		{"region", dev.mrs.used, func() error {
			m, err := b.a.pd.RegMR(ib.MRInit{Space: mem, Addr: addr, Length: 64})
			check(t, err)
			return m.Dereg()
		}},
		{"region without memory", dev.mrs.used, func() error {
			m, err := b.a.pd.AllocMR(4)
			check(t, err)
			return m.Dereg()
		}},
		{"window", dev.mws.used, func() error {
			w, err := b.a.pd.AllocMW(ib.MWType2)
			check(t, err)
			return w.Dealloc()
		}},
		{"address handle", dev.ahs.used, func() error {
			h, err := b.a.pd.CreateAH(&ib.AHAttr{Port: 1, HasGRH: true, GRH: ib.GlobalRoute{DGID: ib.GIDFromAddr(addrB)}})
			check(t, err)
			return h.Destroy()
		}},
		{"shared queue", dev.srqs.used, func() error {
			s, err := b.a.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
			check(t, err)
			return s.Destroy()
		}},
		{"queue pair", dev.qps.used, func() error {
			q, err := b.a.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: b.a.cq, RecvCQ: b.a.cq,
				Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			check(t, err)
			return q.Destroy()
		}},
	} {
		before := c.used()
		for range rounds {
			check(t, c.once())
		}
		if n := c.used() - before; n > rounds/4 {
			t.Errorf("%s: %d objects used %d numbers, want few", c.name, rounds, n)
		}
	}
}
