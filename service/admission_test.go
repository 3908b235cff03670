package service

import (
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// TestAdmissionPace: after a burst, clients of one user id are looked at so many in a second; after a quiet time there may be another
// burst.
func TestAdmissionPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a admissions
		q := &admission{tokens: admissionBurst, at: time.Now(), busy: true}
		began := time.Now()
		look := func(n int) {
			for range n {
				q.waiting = append(q.waiting, &net.UnixConn{})
			}
			for {
				c, pause := a.next(q)
				if c == nil {
					return
				}
				time.Sleep(pause)
			}
		}
		look(admissionBurst)
		if d := time.Since(began); d != 0 {
			t.Errorf("a burst took %v", d)
		}
		look(admissionRate)
		if d := time.Since(began); d < 900*time.Millisecond || d > 1100*time.Millisecond {
			t.Errorf("as many more as in a second took %v", d)
		}
		if q.busy {
			t.Error("an empty queue is busy")
		}
		time.Sleep(10 * time.Second)
		began = time.Now()
		look(admissionBurst)
		if d := time.Since(began); d != 0 {
			t.Errorf("another burst took %v", d)
		}
	})
}

// TestSurplusAdmissions: clients beyond a full queue are disconnected, and those of the queue are not.
func TestSurplusAdmissions(t *testing.T) {
	s, _ := served(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.33"}})
	a := admissions{of: map[int]*admission{os.Geteuid(): {busy: true}}} // a goroutine that does not get on
	var surplus *net.UnixConn
	for i := range maxAdmissions + 1 {
		ends := connected(t)
		if got, want := a.add(s, ends[0]), i < maxAdmissions; got != want {
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
		t.Errorf("%d clients wait, want %d", a.total, maxAdmissions)
	}
}
