package service

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// TestUnreadAnswers: a request counts as one of its user's until its answer has been sent, since the answer takes memory.
func TestUnreadAnswers(t *testing.T) {
	s, _ := served(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.31"}})
	const uid = 4242
	ask := func(c *net.UnixConn) {
		if _, err := c.Write(message(t, &ctl.Request{Protocol: ctl.Protocol, Op: ctl.OpStatShow})); err != nil {
			t.Fatal(err)
		}
	}
	held := func() int {
		s.requests.mu.Lock()
		defer s.requests.mu.Unlock()
		return s.requests.users[quota.ID{UID: uid}]
	}
	var clients []*net.UnixConn
	for range maxRequests {
		ends := connected(t)
		if err := ends[0].SetWriteBuffer(1); err != nil {
			t.Fatal(err)
		}
		s.admitPeer(ends[0], userPeer(uid))
		for range 20 { // one of the answers does not fit
			ask(ends[1])
		}
		clients = append(clients, ends[1])
	}
	testutil.Eventually(t, "all requests to wait for their answers to be read", func() bool { return held() == maxRequests })
	time.Sleep(20 * time.Millisecond)
	if n := held(); n != maxRequests {
		t.Errorf("%d requests are counted, want %d", n, maxRequests)
	}
	ends := connected(t)
	s.admitPeer(ends[0], userPeer(uid))
	if _, err := ctl.NewClient(ends[1], 1, 0).Do(&ctl.Request{Op: ctl.OpStatShow}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("one more: got %v, want EBUSY", err)
	}
	for _, c := range clients {
		c.Close()
	}
	testutil.Eventually(t, "the requests to end", func() bool { return held() == 0 })
}

// TestRefusedClientLearnsWhy: a client that has sent its request before it is refused receives the reason, and no reset of
// the connection.
func TestRefusedClientLearnsWhy(t *testing.T) {
	limits := DefaultLimits(true)
	limits[quota.Connections] = quota.Limit{PerUser: 1, Total: 100}
	s, err := New(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.32"}}}, Limits: &limits})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first := connected(t)
	s.admitPeer(first[0], userPeer(4242))
	for range 20 {
		ends := connected(t)
		if _, err := ends[1].Write(message(t, &ctl.Request{Protocol: ctl.Protocol, Op: ctl.OpOpen, Name: "rxe0"})); err != nil {
			t.Fatal(err)
		}
		s.admitPeer(ends[0], userPeer(4242))
		ends[1].SetReadDeadline(time.Now().Add(patience))
		text, err := io.ReadAll(io.LimitReader(ends[1], 1<<16))
		if err != nil || !strings.Contains(string(text), "--limit connections=") {
			t.Fatalf("got %q, %v, want the limit", text, err)
		}
		ends[1].Close()
	}
}
