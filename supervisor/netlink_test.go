package supervisor

import (
	"os"
	"testing"

	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/rights"
)

// TestNetlinkRights: a request has the rights that both its sender and the opener of the socket have.
func TestNetlinkRights(t *testing.T) {
	w := newWorld(t)
	self := &rights.Sender{PID: os.Getpid(), UID: os.Getuid()}
	const user, other = 1001, 1002
	account := func(uid int) quota.ID { return quota.ID{UID: uid} }
	opener := func(uid int, manages bool) netlinkOpener {
		return netlinkOpener{principal.Principal{Account: account(uid), Manager: manages}, uid}
	}
	for _, c := range []struct {
		what                          string
		sender                        *rights.Sender
		opener                        netlinkOpener
		manages, seesUser, seesOthers bool
	}{
		{"a manager on its own socket", self, opener(self.UID, true), true, true, true},
		{"a user on his own", &rights.Sender{PID: 1, UID: user}, opener(user, false), false, true, false},
		{"a manager who writes what a user has made it write", self, opener(user, false), false, false, false},
		{"a user on a manager's", &rights.Sender{PID: os.Getpid(), UID: user}, opener(0, true), false, false, false},
		{"a user on another's", &rights.Sender{PID: 1, UID: other}, opener(user, false), false, false, false},
		{"a manager that has ended", &rights.Sender{PID: 1 << 30, UID: 0}, opener(0, true), false, false, false},
		{"an unknown sender", nil, opener(0, true), false, false, false},
	} {
		s := w.sup.source(c.sender, c.opener)
		if s.manages != c.manages || s.sees(account(user)) != c.seesUser || s.sees(account(other)) != c.seesOthers {
			t.Errorf("%s: manages %v, sees user %v and others %v", c.what, s.manages, s.sees(account(user)), s.sees(account(other)))
		}
	}
	anonymous := netlinkOpener{principal.Principal{Account: account(65534), Anonymous: true}, 65534}
	if s := w.sup.source(&rights.Sender{PID: 1, UID: 65534}, anonymous); s.manages || s.sees(account(65534)) {
		t.Error("users that have no number here see one another")
	}
	// Two containers may have the same user ids.
	pod := opener(0, false)
	pod.Account.Container = 7
	s := w.sup.source(&rights.Sender{PID: 1, UID: 0}, pod)
	if s.sees(account(0)) || s.sees(quota.ID{Container: 8}) || !s.sees(quota.ID{Container: 7}) {
		t.Error("a user of a container sees what another container has")
	}
}
