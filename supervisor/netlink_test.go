package supervisor

import (
	"os"
	"testing"
)

// TestNetlinkRights: a request has the rights that both its sender and who opened the socket have.
func TestNetlinkRights(t *testing.T) {
	own, user, other := os.Geteuid(), 1001, 1002
	for _, c := range []struct {
		uid, opener                   int
		manages, seesUser, seesOthers bool
	}{
		{0, 0, true, true, true},
		{own, own, true, true, true},
		{user, user, false, true, false},
		{0, user, false, true, false}, // root writes what a user has made it write
		{user, 0, false, true, false},
		{own, user, false, true, false},
		{other, user, false, false, false},
		{-1, 0, false, false, false}, // the sender is not known
	} {
		s := netlinkSource{uid: c.uid, opener: c.opener}
		if s.manages() != c.manages || s.sees(user) != c.seesUser || s.sees(other) != c.seesOthers {
			t.Errorf("user %d on a socket of %d: manages %v, sees %v and %v", c.uid, c.opener, s.manages(), s.sees(user), s.sees(other))
		}
	}
	nobody := overflowUID()
	if s := (netlinkSource{uid: nobody, opener: nobody}); s.manages() || s.sees(nobody) || s.sees(user) {
		t.Error("users that have no number here see one another")
	}
}
