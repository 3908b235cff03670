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
	take := func(owner any) (n int) {
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
		if got := take(owner); got != n {
			t.Errorf("user %d: got %d, want %d", owner, got, n)
		}
	}
	if got := take(0); got != 0 {
		t.Errorf("first user again: got %d more, want none", got)
	}
	for owner, n := range want {
		for range n {
			s.remove(owner)
		}
	}
	if got := take("next"); got != want[0] || len(s.of) != 1 {
		t.Errorf("after the end of all others: got %d of %d owners, want %d of 1", got, len(s.of), want[0])
	}
	unlimited := userShares{}
	for range 10000 {
		if err := unlimited.add(1); err != nil {
			t.Fatal(err)
		}
	}
}
