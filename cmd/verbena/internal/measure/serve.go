package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"verbena/verbs"
)

// dial agrees with a server, and connects. The receives of the queue pairs are posted.
func dial(ctx context.Context, dev *verbs.Device, conn net.Conn, k kind, p Params, l Local) (_ *session, _ *end, err error) {
	s := newSession(ctx, conn)
	var e *end
	defer func() {
		if err != nil {
			s.close()
			if e != nil {
				err = errors.Join(err, e.close())
			}
		}
	}()
	if err := p.Check(); err != nil {
		return nil, nil, err
	}
	room := 0
	if k == pingPong {
		room = pingPongRoom
	}
	if e, err = newEnd(dev, p, l, room); err != nil {
		return nil, nil, err
	}
	if err := s.send(hello{Protocol: protocol, Kind: k, Params: p, Ends: e.local, Memory: e.remote()}); err != nil {
		return nil, nil, err
	}
	var h hello
	if err := s.receive(&h); err != nil {
		return nil, nil, err
	}
	switch {
	case h.Error != "":
		return nil, nil, fmt.Errorf("the server refuses: %s", h.Error)
	case h.Protocol != protocol:
		return nil, nil, fmt.Errorf("the server speaks protocol %d, this side %d", h.Protocol, protocol)
	}
	if err := e.connect(h.Ends, h.Memory); err != nil {
		return nil, nil, err
	}
	s.watch()
	return s, e, nil
}

// finish says that this side is done, and returns the answer.
func (s *session) finish(received int64) (bye, error) {
	if err := s.send(bye{received}); err != nil {
		return bye{}, err
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, handshakeTime, errors.New("the server does not end"))
	defer cancel()
	select {
	case b := <-s.bye:
		return b, nil
	case <-ctx.Done():
		return bye{}, context.Cause(ctx)
	}
}

// Serve does what a client at the other end of conn asks for, a ping-pong or a series of messages, and closes conn. It returns what this
// side knows of it.
func Serve(ctx context.Context, dev *verbs.Device, conn net.Conn, l Local) (_ *Result, err error) {
	s := newSession(ctx, conn)
	defer s.close()
	var h hello
	if err := s.receive(&h); err != nil {
		return nil, err
	}
	e, err := accept(dev, &h, l)
	if e != nil {
		defer func() { err = errors.Join(err, e.close()) }()
	}
	if err != nil {
		_ = s.send(hello{Protocol: protocol, Error: err.Error()})
		return nil, err
	}
	if err := s.send(hello{Protocol: protocol, Ends: e.local, Memory: e.remote()}); err != nil {
		return nil, err
	}
	s.watch()
	work, done := context.WithCancel(s.ctx)
	defer done()
	s.all.Go(func() {
		select {
		case b := <-s.bye:
			s.bye <- b
			done()
		case <-work.Done():
		}
	})
	r := &Result{Device: dev.Name(), Params: h.Params, Events: l.Events, Received: -1}
	switch {
	case !e.p.receives(h.Kind == pingPong):
		_, err = s.awaitBye()
	case h.Kind == pingPong:
		var n int
		n, err = e.pong(work, s, 0, true)
		r.Received = int64(n)
	default:
		r.Received, err = e.sink(work, s)
	}
	if err != nil && (s.ctx.Err() != nil || !errors.Is(err, context.Canceled)) {
		return nil, err
	}
	if err := s.send(bye{r.Received}); err != nil {
		return nil, err
	}
	return r, nil
}

// accept makes the queue pairs that a client asks for, and connects them.
func accept(dev *verbs.Device, h *hello, l Local) (*end, error) {
	switch {
	case h.Protocol != protocol:
		return nil, fmt.Errorf("the client speaks protocol %d, this side %d", h.Protocol, protocol)
	case h.Kind != pingPong && h.Kind != perf:
		return nil, fmt.Errorf("%q is not known here", h.Kind)
	}
	if err := h.Params.Check(); err != nil {
		return nil, err
	}
	room := 0
	switch {
	case h.Kind == pingPong:
		room = pingPongRoom
	case h.Params.receives(false):
		room = min(2*h.Params.Depth, maxDepth)
	}
	e, err := newEnd(dev, h.Params, l, room)
	if err != nil {
		return nil, err
	}
	e.fill(serverSeed)
	return e, e.connect(h.Ends, h.Memory)
}

// sink receives until the context ends, and returns how many messages have come.
func (e *end) sink(ctx context.Context, s *session) (n int64, err error) {
	again := func(wcs []verbs.WC) error {
		for i := range wcs {
			if err := e.postRecv(int(wcs[i].ID &^ recvID)); err != nil {
				return err
			}
		}
		n += int64(len(wcs))
		s.done.Store(n)
		return nil
	}
	for ctx.Err() == nil {
		wcs, err := e.next(ctx)
		if err != nil {
			break // of the end of the context, or found again below
		}
		if err := again(wcs); err != nil {
			return n, err
		}
	}
	if s.ctx.Err() != nil {
		return n, context.Cause(s.ctx)
	}
	// The client has seen the last acknowledgement; of unreliable messages some may be under way.
	grace := time.Now()
	if e.p.Type != "rc" {
		grace = grace.Add(50 * time.Millisecond)
	}
	for {
		k, err := e.cq.Poll(e.wc)
		if err != nil {
			return n, err
		}
		for i := range e.wc[:k] {
			if err := verbs.CompletionError(&e.wc[i]); err != nil {
				return n, err
			}
		}
		n += int64(k)
		if k == 0 && !time.Now().Before(grace) {
			return n, nil
		}
	}
}
