package service

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/rights"
	"verbena/internal/testutil"
)

// TestAdmissionRateLimit tests that clients of a user ID are identified at a limited rate after a burst, and that
// another burst is possible after an idle time.
func TestAdmissionRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a admissions
		q := &admissionQueue{tokens: admissionBurst, at: time.Now(), busy: true}
		began := time.Now()
		look := func(n int) {
			for range n {
				q.waiting = append(q.waiting, &net.UnixConn{})
			}
			for {
				c, pause := a.dequeue(q)
				if c == nil {
					return
				}
				testutil.AdvanceTime(pause)
			}
		}
		look(admissionBurst)
		if d := time.Since(began); d != 0 {
			t.Errorf("duration of a burst: got %v, want 0", d)
		}
		look(admissionRate)
		if d := time.Since(began); d < 900*time.Millisecond || d > 1100*time.Millisecond {
			t.Errorf("duration of one second's clients beyond the burst: got %v, want 0.9 to 1.1 s", d)
		}
		if q.busy {
			t.Error("busy: got true for an empty queue, want false")
		}
		testutil.AdvanceTime(10 * time.Second)
		began = time.Now()
		look(admissionBurst)
		if d := time.Since(began); d != 0 {
			t.Errorf("duration of another burst: got %v, want 0", d)
		}
	})
}

// TestSurplusClientsAreDisconnected tests that clients beyond a full queue are disconnected, and queued clients are
// not.
func TestSurplusClientsAreDisconnected(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.33"}})
	// busy makes a goroutine seem to be at work, so no client leaves the queue.
	a := admissions{of: map[quota.ID]*admissionQueue{{UID: os.Geteuid()}: {busy: true, known: true}}}
	var surplus *net.UnixConn
	for i := range maxAdmissions + 1 {
		ends := testutil.NewUnixPair(t)
		if got, want := a.add(&s.acceptor, ends[0]), i < maxAdmissions; got != want {
			t.Fatalf("client %d: queued %v, want %v", i, got, want)
		}
		surplus = ends[1]
	}
	closed := make(chan error, 1)
	go func() {
		_, err := surplus.Read(make([]byte, 1))
		closed <- err
	}()
	testutil.Eventually(t, "the surplus client to be disconnected", func() bool { return len(closed) > 0 })
	if a.total != maxAdmissions {
		t.Errorf("clients waiting for identification: got %d, want %d", a.total, maxAdmissions)
	}
}

// TestSubordinateIDsShareAdmissionQueue tests that clients of a subordinate ID count as clients of its owner once one
// of them was identified. Before the first identification, only few clients of the ID can wait. The service forgets
// idle users and remembers busy users.
func TestSubordinateIDsShareAdmissionQueue(t *testing.T) {
	var a admissions
	sub := func(n int) quota.ID { return quota.ID{UID: 100000 + n} }
	owner, pod := quota.ID{UID: 1000}, quota.ID{Container: 7}
	own := a.getOrAddQueue(owner)
	if own.known {
		t.Error("known: got true before the first identified client, want false")
	}
	a.recordAccount(owner, owner)
	if !own.known {
		t.Error("known: got false after an identified client, want true")
	}
	first := a.getOrAddQueue(sub(0))
	if first == own || first.known {
		t.Error("queue of a new user ID: got the queue of another user, want a separate one")
	}
	a.recordAccount(sub(0), owner)
	a.recordAccount(sub(1), owner)
	if a.getOrAddQueue(sub(0)) != own || a.getOrAddQueue(sub(1)) != own || first.known {
		t.Error("queues of subordinate IDs: got separate queues, want one")
	}
	a.recordAccount(sub(2), pod) // pod is a container with a user namespace created by root
	if a.getOrAddQueue(sub(2)) == a.getOrAddQueue(quota.ID{}) || a.getOrAddQueue(sub(2)) != a.getOrAddQueue(pod) {
		t.Error("queues of a container's user IDs: got separate queues, want one")
	}
	for n := range maxQueues + 1 {
		a.recordAccount(sub(n), owner)
	}
	if n := len(a.accounts); n == 0 || n > maxQueues {
		t.Errorf("accounts of subordinate ids: got %d, want at most %d", n, maxQueues)
	}
	own.busy = true
	for n := range maxQueues {
		a.getOrAddQueue(sub(100 + n))
	}
	if a.getOrAddQueue(owner) != own {
		t.Error("remembered users: got no busy user, want one")
	}
	if n := len(a.of); n > maxQueues {
		t.Errorf("remembered users: got %d, want at most %d", n, maxQueues)
	}
}

// TestPrivilegedAdmissions tests that clients of root are queued beyond maxUnknown and beyond the total of all
// users. Clients of root in a container, and clients of other users, are limited.
func TestPrivilegedAdmissions(t *testing.T) {
	const env = "SERVICE_TEST_ADMISSION"
	if path := os.Getenv(env); path != "" {
		for range 3 {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	testutil.SkipUnlessRoot(t, "to create a pid namespace and act as another user")
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	child := exec.Command("unshare", "-p", "-f", os.Args[0], "-test.run=^TestPrivilegedAdmissions$")
	child.Env = append(os.Environ(), env+"="+path)
	end, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer end.Close()
	by := &acceptor{authority: newAuthority(t), rights: &rights.Queues{}}
	for _, tt := range []struct {
		name       string
		connection func() *net.UnixConn
		privileged bool
	}{
		{"root", func() *net.UnixConn { return testutil.NewUnixPair(t)[0] }, true},
		{"another user", func() (c *net.UnixConn) {
			testutil.RunAsUser(t, 65533, func() { c = testutil.NewUnixPair(t)[0] })
			return c
		}, false},
		{"root of a container", func() *net.UnixConn {
			c, err := l.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}, false},
	} {
		for _, full := range []struct {
			waiting, total int
			want           bool
		}{
			{maxUnknown, maxUnknown, tt.privileged},
			{maxUnknown - 1, maxAllAdmissions, tt.privileged},
			{maxUnknown - 1, maxAllAdmissions - 1, true},
		} {
			c := tt.connection()
			pid, uid, err := ctl.PeerCredentials(c)
			if err != nil {
				t.Fatal(err)
			}
			id := quota.ID{UID: uid}
			if uid == 0 {
				if id.Container, err = by.authority.PIDNamespace(pid); err != nil {
					t.Fatal(err)
				}
			}
			q := &admissionQueue{waiting: make([]*net.UnixConn, full.waiting), busy: true}
			a := admissions{of: map[quota.ID]*admissionQueue{id: q}, total: full.total}
			if got := a.add(by, c); got != full.want || (len(q.waiting) > full.waiting) != full.want {
				t.Errorf("add a client of %s with %d waiting of its ID and %d of all users: got %v, want %v",
					tt.name, full.waiting, full.total, got, full.want)
			}
		}
	}
}
