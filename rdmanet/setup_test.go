package rdmanet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/verbs"
)

// validHello returns a valid hello.
func validHello() setupMessage {
	p := setupParams{addr: 1 << 40, ring: 4096, rkey: 7, messages: 10}
	e := verbs.Endpoint{GID: verbs.GID{15: 1}, QPN: 17, PSN: 5, MTU: 3}
	return setupMessage{kind: kindHello, endpoint: e, private: p.appendTo(nil)}
}

func TestMessageEncoding(t *testing.T) {
	t.Parallel()
	change := func(at int, v ...byte) []byte {
		b := validHello().appendEncoded(nil)
		copy(b[at:], v)
		return b
	}
	const endpoint, private = headerSize, headerSize + verbs.EndpointSize
	for _, x := range []struct {
		name string
		b    []byte
		want error
	}{
		{"hello", change(0), nil},
		{"ready", setupMessage{kind: kindReady}.appendEncoded(nil), nil},
		{"refusal", setupMessage{kind: kindRefusal, text: "no"}.appendEncoded(nil), nil},
		{"nothing", nil, syscall.EPROTO},
		{"other magic", change(0, 'X'), syscall.EPROTO},
		{"other version", change(4, 2), syscall.EPROTONOSUPPORT},
		{"unknown kind", change(5, 9), syscall.EPROTO},
		{"hello as ready", change(5, kindReady), syscall.EPROTO},
		{"short", change(0)[:20], syscall.EPROTO},
		{"long", append(change(0), 0), syscall.EPROTO},
		{"long refusal", setupMessage{kind: kindRefusal, text: strings.Repeat("x", maxText+1)}.appendEncoded(nil),
			syscall.EPROTO},
		{"no GID", change(endpoint, make([]byte, 16)...), syscall.EPROTO},
		{"no QPN", change(endpoint+16, 0, 0, 0, 0), syscall.EPROTO},
		{"QPN of 25 bits", change(endpoint+16, 1), syscall.EPROTO},
		{"PSN of 25 bits", change(endpoint+20, 1), syscall.EPROTO},
		{"MTU 6", change(endpoint+28, 6), syscall.EPROTO},
		{"params of another version", change(private, 9), syscall.EPROTONOSUPPORT},
		{"no messages", change(private+2, 0, 3), syscall.EPROTO},
		{"many messages", change(private+2, 255), syscall.EPROTO},
		{"small ring", change(private+4, 0, 0, 0, 255), syscall.EPROTO},
		{"large ring", change(private+4, 0x10, 0, 0, 1), syscall.EPROTO},
		{"ring beyond the address space", change(private+8, 255, 255, 255, 255, 255, 255, 255, 255), syscall.EPROTO},
	} {
		m, err := parseMessage(x.b)
		if err == nil && m.kind == kindHello {
			_, err = parseParams(m.private)
		}
		if !errors.Is(err, x.want) {
			t.Errorf("%s: got %v, want %v", x.name, err, x.want)
		}
	}
}

// FuzzMessage checks that an encoded message decodes to the same values, and that no input causes a panic.
func FuzzMessage(f *testing.F) {
	f.Add(validHello().appendEncoded(nil))
	f.Add(setupMessage{kind: kindReady}.appendEncoded(nil))
	f.Add(setupMessage{kind: kindRefusal, text: "no"}.appendEncoded(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		again, err := parseMessage(m.appendEncoded(nil))
		same := again.kind == m.kind && again.text == m.text && again.endpoint == m.endpoint
		if err != nil || !same || !bytes.Equal(again.private, m.private) {
			t.Errorf("got %+v, %v, want %+v", again, err, m)
		}
		if m.kind != kindHello {
			return
		}
		p, err := parseParams(m.private)
		if err != nil {
			return
		}
		if q, err := parseParams(p.appendTo(nil)); q != p || err != nil {
			t.Errorf("params: got %+v, %v, want %+v", q, err, p)
		}
		s := newFlowSender(minRing, int(p.ring), int(p.messages))
		if s.maxNextMessage() != minRing {
			t.Errorf("room: got %d, want %d", s.maxNextMessage(), minRing)
		}
	})
}

// TestPeerReceivesRefusalReason checks that a peer receives the reason for a refused connection.
func TestPeerReceivesRefusalReason(t *testing.T) {
	t.Parallel()
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		o := &connExchange{nc: x, server: true}
		m, err := o.readMessage(kindHello)
		if err == nil {
			_, err = parseParams(m.private)
		}
		done <- o.sendRefusal(err)
	}()
	stop := interruptOnDone(ctx, y)
	defer stop()
	o := &connExchange{nc: y}
	m := validHello()
	m.private[0] = 2
	if err := o.writeMessage(m); err != nil {
		t.Fatal(err)
	}
	_, err := o.readMessage(kindHello)
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("refusal: got %v, want ECONNREFUSED for version 2", err)
	}
	if err := <-done; !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("got %v, want EPROTONOSUPPORT", err)
	}
	// A refusal is not answered by another refusal. Therefore no bytes arrive.
	_ = x.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	go func() { _ = o.sendRefusal(err) }()
	if n, err := x.Read(make([]byte, 1)); n != 0 || err == io.EOF {
		t.Errorf("got %d bytes, %v", n, err)
	}
}
