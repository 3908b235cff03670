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

// TestUnreadAnswerIsCharged tests that a request is charged to its user until its answer was sent, since the answer
// takes memory.
func TestUnreadAnswerIsCharged(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.31"}})
	const uid = 4242
	ask := func(c *net.UnixConn) {
		if _, err := c.Write(encodeMessage(t, &ctl.Request{Protocol: ctl.ProtocolVersion, Op: ctl.OpStatShow})); err != nil {
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
		ends := testutil.NewUnixPair(t)
		if err := ends[0].SetWriteBuffer(1); err != nil {
			t.Fatal(err)
		}
		s.acceptor.admitPeer(ends[0], userPeer(uid))
		for range 20 { // one answer does not fit into the socket
			ask(ends[1])
		}
		clients = append(clients, ends[1])
	}
	since := time.Now() // an answered client sends another request, so the number of requests varies for a while
	testutil.Eventually(t, "all requests to wait for readers of their answers", func() bool {
		if held() != maxRequests {
			since = time.Now()
		}
		return time.Since(since) >= 20*time.Millisecond
	})
	ends := testutil.NewUnixPair(t)
	s.acceptor.admitPeer(ends[0], userPeer(uid))
	if _, err := ctl.NewClient(ends[1], 1, 0).Do(&ctl.Request{Op: ctl.OpStatShow}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("request beyond the limit: got %v, want EBUSY", err)
	}
	for _, c := range clients {
		c.Close()
	}
	testutil.Eventually(t, "the requests to end", func() bool { return held() == 0 })
}

// TestUnreadDataIsChargedAfterEnd tests that an ended connection is charged until its data was read, since the unread
// data takes memory.
func TestUnreadDataIsChargedAfterEnd(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.35"}})
	user := s.quota.User(4242)
	for _, how := range []string{"read", "closed"} {
		ends := testutil.NewUnixPair(t)
		s.acceptor.admitPeer(ends[0], userPeer(4242))
		if _, err := ends[1].Write(encodeMessage(t, &ctl.Request{Protocol: ctl.ProtocolVersion,
			Op: ctl.OpStatShow})); err != nil {
			t.Fatal(err)
		}
		ends[1].CloseWrite()
		testutil.Eventually(t, "the connection to end", func() bool {
			return errors.Is(ends[0].SetReadDeadline(time.Time{}), net.ErrClosed)
		})
		testutil.Consistently(t, 20*time.Millisecond, "the connection is charged while the answer is unread",
			func() bool { return user.Held(quota.Connections) == 1 })
		if how == "read" {
			if b, err := io.ReadAll(ends[1]); err != nil || len(b) < 100 {
				t.Errorf("read the answer: got %d bytes and error %v, want success", len(b), err)
			}
		} else {
			ends[1].Close()
		}
		testutil.Eventually(t, "the charge to end: "+how, func() bool { return user.Held(quota.Connections) == 0 })
	}
}

// TestUnreadRefusalsAreLimited tests that the service answers only a limited number of refused clients of a user that
// do not read the answer.
func TestUnreadRefusalsAreLimited(t *testing.T) {
	limits := DefaultLimits(true)
	limits[quota.Connections] = quota.Limit{PerUser: 1, Total: 100}
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.36"}}}, Limits: &limits})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.acceptor.admitPeer(testutil.NewUnixPair(t)[0], userPeer(4242))
	told := func(uid int) (*net.UnixConn, bool) {
		ends := testutil.NewUnixPair(t)
		s.acceptor.admitPeer(ends[0], userPeer(uid))
		ends[1].SetReadDeadline(time.Now().Add(testTimeout))
		n, err := ends[1].Read(make([]byte, 1)) // the rest of the answer stays unread
		if n == 0 && err != io.EOF {
			t.Error(err)
		}
		return ends[1], n == 1
	}
	var clients []*net.UnixConn
	for n := range maxUnheard + 1 {
		c, ok := told(4242)
		if want := n < maxUnheard; ok != want {
			t.Errorf("client %d received an answer: got %v, want %v", n, ok, want)
		}
		clients = append(clients, c)
	}
	s.acceptor.admitPeer(testutil.NewUnixPair(t)[0], userPeer(4243))
	if _, ok := told(4243); !ok {
		t.Error("client of another user: got no answer, want one")
	}
	for _, c := range clients {
		c.Close()
	}
	testutil.Eventually(t, "a client to get the answer", func() bool {
		_, ok := told(4242)
		return ok
	})
}

// TestRefusedClientLearnsWhy tests that a client that sent its request before the refusal receives the reason instead
// of a connection reset.
func TestRefusedClientLearnsWhy(t *testing.T) {
	limits := DefaultLimits(true)
	limits[quota.Connections] = quota.Limit{PerUser: 1, Total: 100}
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.32"}}}, Limits: &limits})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first := testutil.NewUnixPair(t)
	s.acceptor.admitPeer(first[0], userPeer(4242))
	for range 20 {
		ends := testutil.NewUnixPair(t)
		if _, err := ends[1].Write(
			encodeMessage(t, &ctl.Request{Protocol: ctl.ProtocolVersion, Op: ctl.OpOpen, Name: "rxe0"})); err != nil {
			t.Fatal(err)
		}
		s.acceptor.admitPeer(ends[0], userPeer(4242))
		ends[1].SetReadDeadline(time.Now().Add(testTimeout))
		text, err := io.ReadAll(io.LimitReader(ends[1], 1<<16))
		if err != nil || !strings.Contains(string(text), "--limit connections=") {
			t.Fatalf("answer to a refused client: got %q, %v, want the limit", text, err)
		}
		ends[1].Close()
	}
}
