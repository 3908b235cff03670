package measure

import (
	"context"
	"net"
	"time"

	"verbena/verbs"
)

// PerfTest selects the phases that a client of [Perf] runs.
type PerfTest string

// The tests.
const (
	both      PerfTest = "both"
	latency   PerfTest = "latency"   // one message at a time
	bandwidth PerfTest = "bandwidth" // Params.Depth messages on each queue pair
)

// Perf runs the client of a measurement with a server that runs [Serve] at the other end of conn. It closes conn.
func Perf(ctx context.Context, dev *verbs.Device, conn net.Conn, p Params, t PerfTest, l LocalParams) (_ *Result,
	err error) {
	s := newSession(ctx, conn)
	defer func() { err = s.close(err) }()
	e, err := s.negotiateAsClient(dev, perf, p, l)
	if err != nil {
		return nil, err
	}
	e.fillPattern(clientSeed)
	r := &Result{Device: dev.Name(), Params: e.p, Events: l.Events}
	warm := 100
	if e.p.Iters > 0 {
		warm = min(warm, e.p.Iters)
	}
	if _, err := e.streamMessages(s, Params{Size: e.p.Size, Iters: warm, QPs: 1, Depth: 1}, "warm-up", l); err != nil {
		return nil, err
	}
	if t != bandwidth {
		q := e.p
		q.QPs, q.Depth = 1, 1
		if r.Latency, err = e.streamMessages(s, q, "latency", l); err != nil {
			return nil, err
		}
	}
	if t != latency {
		if r.Bandwidth, err = e.streamMessages(s, e.p, "bandwidth", l); err != nil {
			return nil, err
		}
	}
	if e.p.Op == Read {
		if err := e.checkPattern(serverSeed); err != nil {
			return nil, err
		}
	}
	n, err := s.exchangeDoneMessages()
	if err != nil {
		return nil, err
	}
	r.Received = n.Received
	return r, nil
}

// qpMessageStream holds the messages of one queue pair. A ring holds the post times of messages in flight.
type qpMessageStream struct {
	began []time.Time
	first int
	n     int
}

// streamMessages keeps messages in flight on the first queue pairs until the phase ends.
func (e *localEndpoint) streamMessages(s *session, p Params, name string, l LocalParams) (*Phase, error) {
	defer s.watchStall(name, l.Progress)()
	lat := newLatencyHistogram()
	flows := make([]qpMessageStream, p.QPs)
	batches := make([][]verbs.SendWR, p.QPs)
	for i := range flows {
		flows[i].began = make([]time.Time, p.Depth)
		for range p.Depth {
			batches[i] = append(batches[i], e.newSendWR(i, false))
		}
	}
	start := time.Now()
	now, posted, finished := start, 0, int64(0)
	more := func() bool {
		if p.Iters > 0 {
			return posted < p.Iters
		}
		return now.Sub(start) < p.Duration
	}
	for {
		for i := range flows {
			f := &flows[i]
			k := p.Depth - f.n
			if p.Iters > 0 {
				k = min(k, p.Iters-posted)
			}
			if k == 0 || !more() {
				continue
			}
			began := time.Now()
			for j := range k {
				f.began[(f.first+f.n+j)%p.Depth] = began
			}
			if _, err := e.qps[i].PostSends(batches[i][:k]); err != nil {
				return nil, err
			}
			f.n += k
			posted += k
		}
		if finished == int64(posted) {
			break
		}
		wcs, err := e.waitCompletions(s.ctx)
		if err != nil {
			return nil, err
		}
		now = time.Now()
		for i := range wcs {
			f := &flows[wcs[i].ID]
			lat.add(now.Sub(f.began[f.first]))
			f.first = (f.first + 1) % p.Depth
			f.n--
		}
		finished += int64(len(wcs))
		s.count.Store(finished)
	}
	return newPhase(finished, 1, time.Since(start), p.Size, lat), nil
}
