package rdmanet

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/verbs"
	"verbena/verbs/embed"
)

// hostilePeer is a peer that ignores the protocol.
type hostilePeer struct {
	t     *testing.T
	qp    *verbs.QP
	cq    *verbs.CQ
	mem   *verbs.MR
	there setupParams // parameters of the Conn
}

// newHostilePeer establishes a connection with a hostile peer. The peer follows only the protocol of the set-up.
func newHostilePeer(t *testing.T, cfg Config) (*Conn, *hostilePeer) {
	t.Helper()
	s, err := embed.NewSoftware()
	must(t, err)
	t.Cleanup(s.Close)
	dev, err := s.Open("")
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	p := &hostilePeer{t: t}
	pd, err := dev.AllocPD()
	must(t, err)
	p.cq, err = dev.CreateCQ(1000, nil)
	must(t, err)
	p.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: p.cq, SendWRs: 400, RecvWRs: 400})
	must(t, err)
	p.mem, err = pd.Alloc(1<<20, verbs.LocalWrite|verbs.RemoteWrite)
	must(t, err)
	must(t, p.qp.Prepare(verbs.Path{}))
	for range 400 {
		must(t, p.qp.PostRecv(&verbs.RecvWR{}))
	}
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		own := setupParams{addr: p.mem.Addr(), ring: 1 << 20, rkey: p.mem.RKey(), messages: maxMessages}
		private, _, _, err := (&connExchange{nc: x}).Connect(ctx, p.qp, verbs.Path{}, own.appendTo(nil))
		if err == nil {
			p.there, err = parseParams(private)
		}
		if err != nil {
			t.Error(err)
		}
	})
	c, err := Server(ctx, y, dev, cfg)
	must(t, err)
	wg.Wait()
	t.Cleanup(func() { _ = c.Close() })
	return c, p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeToRing sends a message of n bytes from the start of the peer's memory to an offset in the ring.
func (p *hostilePeer) writeToRing(at, n int, imm uint32) {
	wr := verbs.SendWR{
		Opcode: verbs.WriteWithImm, Flags: verbs.Signaled, Imm: imm,
		Remote: verbs.Remote{Addr: p.there.addr + uint64(at), RKey: p.there.rkey},
	}
	if n > 0 {
		wr.Local = p.mem.SGE(0, n)
	}
	p.postAndWait(wr)
}

// postAndWait posts a work request and waits for its completion. The work request may fail.
func (p *hostilePeer) postAndWait(wr verbs.SendWR) bool {
	if err := p.qp.PostSend(&wr); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		var wcs [1]verbs.WC
		if n, err := p.cq.Wait(ctx, wcs[:]); err != nil || n == 0 {
			p.t.Errorf("work request of the hostile peer: got no completion, error %v, want one", err)
			return false
		}
		if wcs[0].Opcode != verbs.WCReceiveWriteWith {
			return wcs[0].Status == verbs.Success
		}
	}
}

// TestProtocolViolationEndsConn checks that a violation of the protocol ends the connection and has no other effect.
// Data received before the violation must be readable, and data received after the violation must not.
func TestProtocolViolationEndsConn(t *testing.T) {
	const ring, messages = 4096, 8
	for _, x := range []struct {
		name string
		do   func(*hostilePeer)
	}{
		{"a credit for bytes that were not sent", func(p *hostilePeer) { p.writeToRing(0, 0, 100) }},
		{"with data", func(p *hostilePeer) { p.writeToRing(5, 1, 100) }},
		{"more than the ring holds", func(p *hostilePeer) { p.writeToRing(0, ring, 0) }},
		{"more messages than were announced", func(p *hostilePeer) {
			for i := range messages {
				p.writeToRing(5+i, 1, 0)
			}
		}},
		{"data after FIN", func(p *hostilePeer) {
			p.writeToRing(0, 0, immFin)
			p.writeToRing(5, 1, 0)
		}},
		{"a message without data, credit or flags", func(p *hostilePeer) { p.writeToRing(0, 0, 0) }},
		{"FIN twice", func(p *hostilePeer) {
			p.writeToRing(0, 0, immFin)
			p.writeToRing(0, 0, immFin)
		}},
		{"an empty SEND", func(p *hostilePeer) { p.postAndWait(verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled}) }},
		{"a SEND", func(p *hostilePeer) {
			p.postAndWait(verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled, Local: p.mem.SGE(0, 10)})
		}},
		{"beyond the ring", func(p *hostilePeer) { p.writeToRing(ring-10, 20, 0) }},
		{"another key", func(p *hostilePeer) {
			p.there.rkey ^= 0x100
			p.writeToRing(0, 1, 0)
		}},
		{"a READ of the ring", func(p *hostilePeer) {
			p.postAndWait(verbs.SendWR{
				Opcode: verbs.Read, Flags: verbs.Signaled, Local: p.mem.SGE(0, 10),
				Remote: verbs.Remote{Addr: p.there.addr, RKey: p.there.rkey},
			})
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			c, p := newHostilePeer(t, Config{ReadBuffer: ring, Messages: messages, KeepAlive: -1})
			copy(p.mem.Bytes(), "first")
			p.writeToRing(0, 5, 0)
			x.do(p)
			must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
			_, err := io.ReadAll(io.LimitReader(c, 5))
			must(t, err)
			for err = nil; err == nil; {
				_, err = c.Read(make([]byte, 100)) // the bytes before the violation
			}
			if x.name == "data after FIN" || x.name == "FIN twice" {
				err = nil // io.EOF: the stream had already ended
			} else if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Read: got %v, want ECONNRESET", err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Write: got %v, want ECONNRESET", err)
			}
			p.writeToRing(0, 5, 0)
			if n, err := c.Read(make([]byte, 5)); n != 0 {
				t.Errorf("Read after the connection has failed: got %d bytes and error %v, want none", n, err)
			}
			if err := c.Close(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Close: got %v, want ECONNRESET", err)
			}
		})
	}
}

// TestFlood checks that calls return in spite of a flood of empty messages.
func TestFlood(t *testing.T) {
	t.Parallel()
	c, p := newHostilePeer(t, Config{KeepAlive: -1})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100_000 {
			wr := verbs.SendWR{Opcode: verbs.WriteWithImm, Flags: verbs.Signaled}
			if !p.postAndWait(wr) {
				return
			}
		}
	})
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("Read: got %v, want EPROTO", err)
	}
	_ = c.Close()
	wg.Wait()
}

// TestWriteBlocksWithoutCredits checks a peer that never sends credits. Write must block until its deadline, and Close
// must not be delayed.
func TestWriteBlocksWithoutCredits(t *testing.T) {
	t.Parallel()
	c, _ := newHostilePeer(t, Config{KeepAlive: -1})
	must(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	n, err := c.Write(make([]byte, 4<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n > 1<<20 {
		t.Errorf("Write: got %d bytes and error %v, want at most one ring and %v", n, err, os.ErrDeadlineExceeded)
	}
	must(t, c.Close())
}

// TestForgedDescriptorIsRejected checks descriptors that no region can have. The descriptors have not been checked by
// UnmarshalBinary.
func TestForgedDescriptorIsRejected(t *testing.T) {
	t.Parallel()
	c, p := newHostilePeer(t, Config{KeepAlive: -1})
	mine, err := c.NewRegion(100, 0)
	must(t, err)
	defer mine.Close()
	for _, d := range []Descriptor{
		{Length: math.MaxUint64}, {Length: math.MaxInt64 + 1}, {Addr: math.MaxUint64, Length: 2},
		{Addr: 1 << 63, Length: 1 << 63},
	} {
		m := c.Remote(d)
		for name, f := range map[string]func() error{
			"ReadAt":      func() error { _, err := m.ReadAt(make([]byte, 10), 0); return err },
			"WriteAt":     func() error { _, err := m.WriteAt(make([]byte, 10), 0); return err },
			"ReadRegion":  func() error { return m.ReadRegion(context.Background(), 0, mine, 0, 10) },
			"WriteRegion": func() error { return m.WriteRegion(context.Background(), 0, mine, 0, 10) },
		} {
			if err := f(); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s of %+v: got %v, want EINVAL", name, d, err)
			}
		}
		if m.Len() < 0 {
			t.Errorf("Len of %+v: got %d", d, m.Len())
		}
	}
	// The use of memory of another protection domain is an error of this end.
	dev := c.PD().Device()
	pd, err := dev.AllocPD()
	must(t, err)
	mr, err := pd.Alloc(100, verbs.LocalWrite)
	must(t, err)
	err = c.Remote(RegionOf(p.mem).Descriptor()).WriteRegion(context.Background(), 0, RegionOf(mr), 0, 10)
	if !errors.Is(err, syscall.ECONNABORTED) || !errors.Is(err, verbs.LocalProtection) {
		t.Errorf("WriteRegion from memory of another domain: got %v, want ECONNABORTED and %v", err, verbs.LocalProtection)
	}
	must(t, mr.Close())
	must(t, pd.Close())
}
