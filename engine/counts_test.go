package engine

import (
	"errors"
	"syscall"
	"testing"
)

// TestUserShares tests that each user finds room after earlier users have taken all that they could, and that users
// return their room.
func TestUserShares(t *testing.T) {
	s := userShares{room: 4079}
	take := func(s *userShares, owner any) (n int) {
		for ; ; n++ {
			if err := s.add(owner); err != nil {
				if !errors.Is(err, syscall.ENOMEM) {
					t.Errorf("user %v: got %v, want ENOMEM", owner, err)
				}
				return n
			}
		}
	}
	want := []int{2545, 955, 360, 135}
	for owner, n := range want {
		if got := take(&s, owner); got != n {
			t.Errorf("user %d: got %d, want %d", owner, got, n)
		}
	}
	if got := take(&s, 0); got != 0 {
		t.Errorf("first user again: got %d more, want none", got)
	}
	for owner, n := range want {
		for range n {
			s.remove(owner)
		}
	}
	if got := take(&s, "next"); got != want[0] || len(s.of) != 1 {
		t.Errorf("after the end of all others: got %d of %d owners, want %d of 1", got, len(s.of), want[0])
	}
	small := userShares{room: 80}
	take(&small, 1)
	if small.remove(1); take(&small, 1) != 1 || small.of[1] != 50 {
		t.Errorf("one object less, and as many as possible: got %d, want the 50 before", small.of[1])
	}
	unlimited := userShares{}
	for range 10000 {
		if err := unlimited.add(1); err != nil {
			t.Fatal(err)
		}
	}
}
