//go:build !race

// The test is excluded from race builds, because sync.Pool drops some elements under the race detector.

package umem

import "testing"

func TestListDoesNotAllocate(t *testing.T) {
	space, mem := NewLocal(), make([]byte, 256)
	base, err := space.Add(mem)
	if err != nil {
		t.Fatal(err)
	}
	r, err := GetList(space, nil, []Range{{base + 100, 50}, {base, 50}, {base + 200, 10}}, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	v := [][]byte{make([]byte, 30), make([]byte, 80)}
	if n := testing.AllocsPerRun(100, func() {
		if r.WriteV(v, 0) != nil || r.ReadV(v, 0) != nil {
			t.Error("access failed")
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
