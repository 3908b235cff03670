package principal

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSubordinateIDBelongsToUser tests that a subordinate ID belongs to its user in subuid(5).
func TestSubordinateIDBelongsToUser(t *testing.T) {
	dir := t.TempDir()
	subuid, passwd := filepath.Join(dir, "subuid"), filepath.Join(dir, "passwd")
	at := time.Unix(1e9, 0)
	write := func(file, text string) {
		t.Helper()
		at = at.Add(time.Second)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	s := newSubordinateIDs(subuid, passwd)
	check := func(what string, uid, want int) {
		t.Helper()
		if got := s.ownerOf(uid); got != want {
			t.Errorf("%s: owner of %d: got %d, want %d", what, uid, got, want)
		}
	}
	check("no files", 100000, 100000)
	write(passwd,
		"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/:\nodd:x:100010:1::/:\nbad\nbad:x:y:\n")
	check("no subuid", 100000, 100000)
	write(subuid, "ann:100000:65536\n1001:200000:10\nroot:1000000:10\nann:300000:0\nnobody:400000:10\nbad:x:1\nbad\n\n"+
		"1001:100005:10\nann:500000:-1\nann:4294967290:100\n")
	for _, tt := range []struct {
		what      string
		uid, want int
	}{
		{"a user", 1000, 1000},
		{"root", 0, 0},
		{"no overflow ID", -1, -1},
		{"before the first ID", 99999, 99999},
		{"the first, by name", 100000, 1000},
		{"an ID of two owners", 100005, 1000},
		{"a user ID in the range", 100010, 100010},
		{"the last", 165535, 1000},
		{"after the last ID", 165536, 165536},
		{"by number", 200009, 1001},
		{"after it", 200010, 200010},
		{"root's", 1000000, 1000000},
		{"an empty range", 300000, 300000},
		{"an unknown user", 400000, 400000},
		{"a bad count", 500000, 500000},
		{"a range beyond the maximum ID", 4294967294, 1000},
	} {
		check(tt.what, tt.uid, tt.want)
	}
	write(subuid, "bob:100000:10\n")
	check("after a change", 100000, 1001)
	write(passwd, "bob:x:1002:1::/:\n")
	check("after a change of the user", 100000, 1002)
	if err := os.Remove(subuid); err != nil {
		t.Fatal(err)
	}
	check("removed", 100000, 100000)
}

// TestSubordinateIDIsChargedToOwner tests that a process with a subordinate ID outside of a user namespace is charged
// to the owner of the ID. In a container, the container's own IDs count.
func TestSubordinateIDIsChargedToOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to run processes with subordinate IDs")
	}
	const user, sub = 1234, 700007
	file := filepath.Join(t.TempDir(), "subuid")
	if err := os.WriteFile(file, []byte("1234:700000:10\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := New(nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	a.ids = newSubordinateIDs(file, "/etc/passwd")
	if p := a.InaccessiblePrincipal(sub); p.Account.UID != user {
		t.Errorf("Unseen: got account %v, want %d", p.Account, user)
	}
	for _, tt := range []struct {
		what string
		argv []string
		want int
	}{
		{"outside", nil, user},
		{"in a user namespace of the subordinate ID", []string{"unshare", "-U"}, user},
	} {
		dir, _ := startProcess(t, withCredential(sub), tt.argv...)
		p, err := a.PrincipalOf(dir, sub, sub)
		if err != nil || p.Account.UID != tt.want || p.Account.Container != 0 || p.Manager {
			t.Errorf("principal %s: got %+v and error %v, want user %d", tt.what, p, err, tt.want)
		}
	}
	dir, _ := startProcess(t, nil, "unshare", "-p", "-f", "setpriv", "--reuid", "700007", "--clear-groups")
	p, err := a.PrincipalOf(dir, sub, sub)
	if err != nil || p.Account.UID != sub || p.Account.Container == 0 {
		t.Errorf("principal in a container: got %+v and error %v, want user %d of the container", p, err, sub)
	}
}
