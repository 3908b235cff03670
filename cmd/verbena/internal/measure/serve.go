package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"verbena/verbs"
)

// negotiateAsClient negotiates with a server, connects the queue pairs, and posts the receives.
func (s *session) negotiateAsClient(dev *verbs.Device, k exchangeKind, p Params, l LocalParams) (*localEndpoint,
	error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	room := 0
	if k == pingPong {
		room = pingPongRoom
	}
	e, err := s.newEndpoint(dev, p, l, p.Depth, room)
	if err != nil {
		return nil, err
	}
	if err := s.sendMessage(helloMessage{Protocol: protocolVersion, Kind: k, Params: p, Ends: e.local,
		Memory: e.remoteMemory()}); err != nil {
		return nil, err
	}
	h, err := s.receiveHello()
	if err != nil {
		return nil, err
	}
	if err := e.connect(h.Ends, h.Memory); err != nil {
		return nil, err
	}
	s.watchPeer(e.checkDeviceAlive)
	return e, nil
}

// receiveHello reads the peer's hello message.
func (s *session) receiveHello() (h helloMessage, err error) {
	if err := s.receiveMessage(&h); err != nil {
		return h, err
	}
	switch {
	case h.Error != "":
		return h, newPeerError(h.Error)
	case h.Protocol != protocolVersion:
		return h, fmt.Errorf("%w speaks protocol %d, want %d: use one version of verbena at both ends", ErrPeer,
			h.Protocol, protocolVersion)
	}
	return h, nil
}

// exchangeDoneMessages reports to the peer that this side is done, and returns the peer's answer.
func (s *session) exchangeDoneMessages() (statusMessage, error) {
	if err := s.sendMessage(statusMessage{Done: true}); err != nil {
		return statusMessage{}, err
	}
	return s.awaitPeerDone()
}

// Serve serves the client at the other end of conn with a ping-pong or a measurement, and closes conn. Serve
// returns the results of this side.
func Serve(ctx context.Context, dev *verbs.Device, conn net.Conn, l LocalParams) (_ *Result, err error) {
	s := newSession(ctx, conn)
	defer func() { err = s.close(err) }()
	h, err := s.receiveHello()
	if err != nil {
		return nil, err
	}
	e, err := s.acceptClient(dev, &h, l)
	if err != nil {
		return nil, err
	}
	if err := s.sendMessage(helloMessage{Protocol: protocolVersion, Ends: e.local, Memory: e.remoteMemory()}); err != nil {
		return nil, err
	}
	s.watchPeer(e.checkDeviceAlive)
	r := &Result{Device: dev.Name(), Params: h.Params, Events: l.Events, Received: -1}
	if e.p.consumesReceive(h.Kind == pingPong) {
		until, finished := context.WithCancel(s.ctx)
		defer finished()
		s.all.Go(func() {
			_, _ = s.awaitPeerDone()
			finished()
		})
		if h.Kind == pingPong {
			var n int
			n, err = e.answerMessages(until, s, 0, true)
			r.Received = int64(n)
		} else {
			r.Received, err = e.receiveMessages(until)
		}
		switch {
		case s.ctx.Err() != nil:
			err = context.Cause(s.ctx)
		case errors.Is(err, context.Canceled): // the client is done
			err = nil
		}
	} else {
		_, err = s.awaitPeerDone()
	}
	if err != nil {
		return nil, err
	}
	return r, s.sendMessage(statusMessage{Done: true, Received: r.Received})
}

// acceptClient creates the queue pairs for a client, and connects them.
func (s *session) acceptClient(dev *verbs.Device, h *helloMessage, l LocalParams) (*localEndpoint, error) {
	if h.Kind != pingPong && h.Kind != perf {
		return nil, fmt.Errorf("exchange %.20q is not pingpong or perf", h.Kind)
	}
	if err := h.Params.Check(); err != nil {
		return nil, err
	}
	sends, room := 1, 0
	switch {
	case h.Kind == pingPong:
		sends, room = pingPongRoom, pingPongRoom
	case h.Params.consumesReceive(false):
		room = min(2*h.Params.Depth, maxDepth)
	}
	e, err := s.newEndpoint(dev, h.Params, l, sends, room)
	if err != nil {
		return nil, err
	}
	e.fillPattern(serverSeed)
	return e, e.connect(h.Ends, h.Memory)
}

// receiveMessages receives messages until the context ends, and returns their number. At the end of the context, the
// client has received the last acknowledgement. Unreliable messages may still be in flight, so receiveMessages waits
// for them.
func (e *localEndpoint) receiveMessages(ctx context.Context) (n int64, err error) {
	for ctx.Err() == nil {
		wcs, err := e.waitCompletions(ctx)
		if err != nil && ctx.Err() != nil {
			break
		}
		if err != nil {
			return n, err
		}
		for i := range wcs {
			if err := e.postRecv(int(wcs[i].ID &^ recvIDFlag)); err != nil {
				return n, err
			}
		}
		n += int64(len(wcs))
	}
	until := time.Now()
	if e.p.Type != "rc" {
		until = until.Add(50 * time.Millisecond)
	}
	for {
		wcs, err := e.pollCompletions()
		if err != nil {
			return n, err
		}
		n += int64(len(wcs))
		if len(wcs) == 0 && !time.Now().Before(until) {
			return n, nil
		}
	}
}
