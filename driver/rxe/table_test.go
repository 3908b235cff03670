package rxe

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
