package ctl

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"verbena/internal/testutil"
)

// TestProgramsTrustServiceOwners tests that a program may use a service of root, of its own user, or of a named user.
// The location alone does not name a user.
func TestProgramsTrustServiceOwners(t *testing.T) {
	self, other := os.Geteuid(), 4242
	for _, c := range []struct {
		name string
		uid  int
		loc  Location
		want error
	}{
		{"root", 0, Location{}, nil},
		{"own", self, Location{}, nil},
		{"another", other, Location{}, syscall.EPERM},
		{"named", other, Location{ServiceUser: &other}, nil},
		{"another user than the named one", other + 1, Location{ServiceUser: &other}, syscall.EPERM},
	} {
		if err := c.loc.checkTrusted(c.uid); !errors.Is(err, c.want) {
			t.Errorf("trusts %s: got %v, want %v", c.name, err, c.want)
		}
	}
}

// TestDialChecksOwnerFirst tests that Dial checks the owner of the service before it sends anything.
func TestDialChecksOwnerFirst(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to run a service of another user")
	}
	dir, err := os.MkdirTemp("", "verbena-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sock")
	t.Setenv("VERBENA_SOCKET", path)
	const uid = 65533
	got := make(chan int, 1)
	listening := make(chan *net.UnixListener)
	go testutil.RunAsUser(t, uid, func() {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Error(err)
		}
		listening <- l
	})
	l := <-listening
	if l == nil {
		t.FailNow()
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n, _ := c.Read(make([]byte, 1))
			got <- n
			c.Close()
		}
	}()
	loc, err := DefaultLocation()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(loc)
	if !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "--service-user") {
		t.Errorf("Dial: got %v, want EPERM", err)
	}
	if err == nil {
		c.Close()
	}
	if n := <-got; n != 0 {
		t.Error("data sent before the check: got some, want none")
	}
	named := uid
	loc.ServiceUser = &named
	if c, err = Dial(loc); err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-got
}

// TestOverflowIDIsNotOwn tests that the overflow ID, which represents all unmapped IDs, never counts as this
// process's own ID.
func TestOverflowIDIsNotOwn(t *testing.T) {
	self := os.Geteuid()
	for _, c := range []struct {
		ids  idMap
		want bool
	}{{idMap{Overflow: self}, false}, {idMap{Overflow: self + 1}, true}, {idMap{Overflow: self, All: true}, true}} {
		if got := c.ids.IsOwn(self); got != c.want {
			t.Errorf("%+v: Own(%d): got %v, want %v", c.ids, self, got, c.want)
		}
	}
	if self != 0 {
		old := readIDMap
		defer func() { readIDMap = old }()
		readIDMap = func() idMap { return idMap{Overflow: self} }
		if err := (Location{}).checkTrusted(self); !errors.Is(err, syscall.EPERM) {
			t.Errorf("trusts of the overflow ID: got %v, want EPERM", err)
		}
	}
	for text, want := range map[string]bool{
		"         0          0 4294967295\n": true, "0 1000 1\n": false, "0 100000 65536\n": false, "": false,
		"0 1000 1\n1 100000 65536\n": false, "0 0 65536\n": false,
	} {
		if got := isIdentityMap(text); got != want {
			t.Errorf("isIdentityMap of uid_map %q: got %v, want %v", text, got, want)
		}
	}
}
