package engine

import (
	"slices"
	"testing"
)

// TestTableAll tests that all goes through claimed numbers, below the first, as well as through those that were given out.
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

// TestTableReuse tests that each number is given out again exactly once after many numbers were dropped.
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
