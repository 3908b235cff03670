package ctl

import (
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// newAnsweredClient returns a client of a service that answers each request with the result of the function answer.
func newAnsweredClient(t *testing.T, answer func(*Request) any) *Client {
	t.Helper()
	ends := newUnixSocketPair(t)
	go func() {
		for {
			var r Request
			if _, err := (Conn{UnixConn: ends[0]}).Receive(&r, MessageLimits{Size: MaxRequest}); err != nil {
				return
			}
			a := answer(&r)
			if err := (Conn{UnixConn: ends[0]}).Send(a, nil); err != nil {
				return
			}
			if _, yields := a.(*Response); yields && r.Op == OpYield {
				ends[0].Close()
			}
		}
	}()
	return NewClient(ends[1], 4711, 0)
}

// TestOlderServiceErrorNamesRemedy tests that a service that reports no build is described as older, with the remedy.
func TestOlderServiceErrorNamesRemedy(t *testing.T) {
	for _, old := range []struct {
		text  string
		errno syscall.Errno
	}{
		{"the running service speaks protocol 3, this command 4: ...", syscall.EPROTO},
		{`malformed request "open": invalid argument`, syscall.EINVAL}, // a request that the service does not have
	} {
		c := newAnsweredClient(t, func(*Request) any { return map[string]any{"Error": old.text, "Errno": old.errno} })
		_, err := c.Do(&Request{Op: OpInfo})
		const want = "the running service (process 4711) is older than this command ("
		if !errors.Is(err, syscall.EPROTO) || !strings.HasPrefix(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), "end it with `verbena stop`, and run this again") {
			t.Errorf("Do: got %v, want %s...", err, want)
		}
	}
	for _, other := range []*Response{
		{Error: "no device", Errno: syscall.EINVAL},
		(&Response{Error: `malformed request "x"`, Errno: syscall.EINVAL}).WithBuild(),
		(&Response{Error: "of another version", Errno: syscall.EPROTO}).WithBuild(),
	} {
		c := newAnsweredClient(t, func(*Request) any { return other })
		if _, err := c.Do(&Request{Op: OpInfo}); err == nil || err.Error() != other.Error {
			t.Errorf("Do: got %v, want %v", err, other.Error)
		}
	}
}

// TestYieldTriesOlderProtocol tests that Yield tries an older version of the protocol if the service refuses the
// client's version.
func TestYieldTriesOlderProtocol(t *testing.T) {
	var mu sync.Mutex // the race detector does not recognise a message as a synchronisation
	var tried []int
	try := func(protocol int) {
		mu.Lock()
		defer mu.Unlock()
		tried = append(tried, protocol)
	}
	c := newAnsweredClient(t, func(r *Request) any {
		try(r.Protocol)
		if r.Op != OpYield {
			return map[string]any{"Error": "of another version", "Errno": syscall.EPROTO}
		}
		return &Response{}
	})
	err := c.Yield(time.Second)
	mu.Lock()
	if err != nil || len(tried) != 1 || tried[0] != ProtocolVersion {
		t.Errorf("Yield: got %v after versions %v, want success after one", err, tried)
	}
	tried = nil
	mu.Unlock()
	c = newAnsweredClient(t, func(r *Request) any {
		try(r.Protocol)
		return map[string]any{"Error": "of another version", "Errno": syscall.EPROTO}
	})
	var no *YieldError
	err = c.Yield(time.Second)
	mu.Lock()
	defer mu.Unlock()
	if !errors.As(err, &no) || len(tried) != ProtocolVersion-firstYieldProtocol+1 ||
		tried[len(tried)-1] != firstYieldProtocol {
		t.Errorf("Yield: got %v after versions %v, want a YieldError after all", err, tried)
	}
}

func newUnixSocketPair(t *testing.T) (ends [2]*net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/socket", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ends[1], err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if ends[0], err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ends[0].Close(); ends[1].Close() })
	return ends
}
