package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/verbs"
)

// TestServerBoundsHostileInput tests that a server returns within a bounded time, and reads a bounded number of bytes,
// if a client sends anything but its parameters.
func TestServerBoundsHostileInput(t *testing.T) {
	endless := func(text string, pause time.Duration) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := c.Write([]byte(text)); err != nil {
					return
				}
				if pause > 0 {
					time.Sleep(pause)
				}
			}
		}
	}
	many := func(text string) func(net.Conn) { return endless(strings.Repeat(text, 1000), 0) }
	for name, client := range map[string]func(net.Conn){
		"silent":        func(net.Conn) {},
		"slow":          endless(`1`, time.Second),
		"slow spaces":   endless(" ", time.Second),
		"endless":       many(" "),
		"endless text":  func(c net.Conn) { c.Write([]byte(`{"kind":"`)); many("x")(c) },
		"endless array": func(c net.Conn) { c.Write([]byte(`{"ends":[{}`)); many(",{}")(c) },
		"long number":   many("1"),
		"nested":        many("["),
		"huge number":   func(c net.Conn) { c.Write([]byte(`{"protocol":1,"params":{"size":1e999}}`)) },
		"other version": func(c net.Conn) {
			json.NewEncoder(c).Encode(helloMessage{Protocol: protocolVersion + 1,
				Kind: perf})
		},
		"other kind": func(c net.Conn) {
			json.NewEncoder(c).Encode(helloMessage{Protocol: protocolVersion,
				Kind: "dance"})
		},
		"rdma-core": func(c net.Conn) { c.Write(formatCompatAddress(verbs.Endpoint{QPN: 1})) },
		"end":       func(c net.Conn) { c.Close() },
		"half":      func(c net.Conn) { c.Write([]byte(`{"protocol"`)); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				var peer sync.WaitGroup
				peer.Go(func() { io.Copy(io.Discard, here) }) // discards the server's answer
				peer.Go(func() { client(here) })
				start, conn := time.Now(), &byteCountingConn{Conn: there}
				_, err := Serve(t.Context(), nil, conn, LocalParams{})
				if err == nil {
					t.Error("Serve: got success, want an error")
				}
				if d := time.Since(start); d > handshakeTime {
					t.Errorf("Serve took %v, want at most %v", d, handshakeTime)
				}
				if conn.n > maxMessage {
					t.Errorf("bytes read by the server: got %d, want at most %d", conn.n, maxMessage)
				}
				here.Close()
				peer.Wait()
			})
		})
	}
}

type byteCountingConn struct {
	net.Conn
	n int
}

func (c *byteCountingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n += n
	return n, err
}

// TestSilentPeerEndsSession tests that a connected peer ends the session if it sends nothing or an incomplete message,
// and that a peer that sends notes does not.
func TestSilentPeerEndsSession(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		err  bool
	}{"silent": {"", true}, "slow": {" ", true}, "runs": {"{}\n", false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				var peer sync.WaitGroup
				peer.Go(func() { io.Copy(io.Discard, here) })
				peer.Go(func() {
					for range time.Tick(time.Second) {
						if _, err := here.Write([]byte(c.text)); err != nil {
							return
						}
					}
				})
				s := newSession(t.Context(), there)
				s.watchPeer(func() error { return nil })
				ctx, cancel := context.WithTimeout(s.ctx, 10*stallTime)
				defer cancel()
				start := time.Now()
				<-ctx.Done()
				if err := context.Cause(s.ctx); c.err != errors.Is(err, ErrPeer) || c.err != (time.Since(start) <= stallTime) {
					t.Errorf("cause of the session's end: got %v after %v", err, time.Since(start))
				}
				_ = s.close(nil)
				here.Close()
				peer.Wait()
			})
		})
	}
}

// TestPeerThatDoesNotReadFails tests that an end fails if its peer does not read from the stream.
func TestPeerThatDoesNotReadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		s := newSession(t.Context(), there)
		start := time.Now()
		if err := s.sendMessage(helloMessage{}); !errors.Is(err, ErrPeer) {
			t.Errorf("send: got %v, want %v", err, ErrPeer)
		}
		if d := time.Since(start); d > writeTime {
			t.Errorf("send took %v, want at most %v", d, writeTime)
		}
		_ = s.close(nil)
	})
}

// stubConn is a peer that sends prepared bytes.
type stubConn struct {
	net.Conn
	io.Reader
}

func (s stubConn) Read(b []byte) (int, error)         { return s.Reader.Read(b) }
func (s stubConn) Close() error                       { return nil }
func (s stubConn) SetReadDeadline(t time.Time) error  { return nil }
func (s stubConn) SetWriteDeadline(t time.Time) error { return nil }
func (s stubConn) Write(b []byte) (int, error)        { return len(b), nil }

// FuzzPeer tests that each side of an exchange either refuses a peer's fuzzed input, or accepts it with values in
// range.
func FuzzPeer(f *testing.F) {
	good, err := json.Marshal(helloMessage{
		Protocol: protocolVersion, Kind: perf, Params: Params{Type: "rc", Op: Write, Size: 64, Iters: 1, QPs: 1,
			Depth: 1}, Ends: make([]verbs.Endpoint, 1),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(bytes.Replace(good, []byte("64"), []byte("-9223372036854775808"), 1))
	f.Add([]byte(`{"protocol":1,"error":"` + strings.Repeat("\u001b", 500) + `"}`))
	f.Add(formatCompatAddress(verbs.Endpoint{QPN: 0xffffff, PSN: 1, GID: verbs.GID{15: 1}}))
	f.Add([]byte("0000:fffffffff:000000:00000000000000000000ffff7f000001\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSession(t.Context(), stubConn{Reader: bytes.NewReader(b)})
		h, err := s.receiveHello()
		switch {
		case err != nil && (len(err.Error()) > 1000 || strings.ContainsFunc(err.Error(), func(r rune) bool {
			return r < ' '
		})):
			t.Errorf("receiveHello: got error %q, want at most 1000 bytes without control characters", err)
		case err == nil && h.Protocol != protocolVersion:
			t.Errorf("receiveHello: got protocol %d, want an error", h.Protocol)
		}
		if err := h.Params.Check(); err == nil {
			p := h.Params
			if p.Size < 1 || p.Size > maxSize || p.QPs < 1 || p.QPs > maxQPs || p.Depth < 1 || p.Depth > maxDepth ||
				p.Iters < 0 || p.Duration < 0 {
				t.Errorf("Check: got success for %+v, want an error", p)
			}
		} else if len(err.Error()) > 200 {
			t.Errorf("Check: got error %q, want at most 200 bytes", err)
		}
		_ = s.close(nil)
		text := make([]byte, compatSize)
		copy(text, b)
		if e, err := parseCompatAddress(text); err == nil && (e.QPN > 0xffffff || e.PSN > 0xffffff || e.GID == verbs.GID{}) {
			t.Errorf("parseCompatAddress: got %+v, want numbers in range", e)
		} else if err != nil && !strings.HasPrefix(fmt.Sprint(err), ErrPeer.Error()) {
			t.Errorf("parseCompatAddress: got error %q, want one of the peer", err)
		}
	})
}
