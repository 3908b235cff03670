package measure

import (
	"context"
	"net"
	"time"

	"verbena/verbs"
)

const (
	// pingPongRoom is the number of receives that a side of a ping-pong posts, and the depth of its send queue.
	pingPongRoom = 16
	clientSeed   = 0x15
	serverSeed   = 0x62
)

// PingPong runs the client of a ping-pong with a server that runs [Serve] at the other end of conn. PingPong closes
// conn, and ignores QPs and Depth of p.
func PingPong(ctx context.Context, dev *verbs.Device, conn net.Conn, p Params, l LocalParams) (_ *Result, err error) {
	p.QPs, p.Depth = 1, pingPongRoom
	s := newSession(ctx, conn)
	defer func() { err = s.close(err) }()
	e, err := s.negotiateAsClient(dev, pingPong, p, l)
	if err != nil {
		return nil, err
	}
	phase, err := e.measureRoundTrips(s, l, true)
	if err != nil {
		return nil, err
	}
	if _, err := s.exchangeDoneMessages(); err != nil {
		return nil, err
	}
	return &Result{Device: dev.Name(), Params: e.p, Events: l.Events, RoundTrip: phase, Received: -1}, nil
}

// measureRoundTrips starts the round trips and measures their times.
func (e *localEndpoint) measureRoundTrips(s *session, l LocalParams, verify bool) (*Phase, error) {
	defer s.watchStall("ping-pong", l.Progress)()
	e.fillPattern(clientSeed)
	p, lat := &e.p, newLatencyHistogram()
	answered := p.consumesReceive(true)
	wr := e.newSendWR(0, true)
	start := time.Now()
	n := 0
	for ; p.Iters == 0 || n < p.Iters; n++ {
		began := time.Now()
		if p.Iters == 0 && began.Sub(start) >= p.Duration {
			break
		}
		if err := e.qps[0].PostSend(&wr); err != nil {
			return nil, err
		}
		for sent, got := false, !answered; !sent || !got; {
			wcs, err := e.waitCompletions(s.ctx)
			if err != nil {
				return nil, err
			}
			for i := range wcs {
				if wcs[i].ID&recvIDFlag == 0 {
					sent = true
					continue
				}
				got = true
				if err := e.postRecv(0); err != nil {
					return nil, err
				}
			}
		}
		lat.add(time.Since(began))
		s.count.Add(1)
	}
	took := time.Since(start)
	if verify && n > 0 && p.Op != Atomic {
		if err := e.checkPattern(serverSeed); err != nil {
			return nil, err
		}
	}
	each := 1
	if answered {
		each = 2
	}
	return newPhase(int64(n), each, took, p.Size, lat), nil
}

// answerMessages answers iters messages, or answers until the context ends if iters is 0. The peer waits for each
// answer.
func (e *localEndpoint) answerMessages(ctx context.Context, s *session, iters int, verify bool) (n int, err error) {
	e.fillPattern(serverSeed)
	wr := e.newSendWR(0, true)
	for got, idle := 0, true; iters == 0 || n < iters || !idle; {
		wcs, err := e.waitCompletions(ctx)
		if err != nil {
			return n, err
		}
		for i := range wcs {
			if wcs[i].ID&recvIDFlag == 0 {
				idle = true
				continue
			}
			got++
			if err := e.postRecv(0); err != nil {
				return n, err
			}
		}
		if got > n && idle {
			if n == 0 && verify {
				if err := e.checkPattern(clientSeed); err != nil {
					return n, err
				}
			}
			if err := e.qps[0].PostSend(&wr); err != nil {
				return n, err
			}
			n, idle = n+1, false
			s.count.Add(1)
		}
	}
	return n, nil
}
