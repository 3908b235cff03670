package limited_destroy

import (
	"context"
	"errors"
	"sync"

	"verbena/ib"
)

// Pool lends memory to queue pairs.
type Pool struct {
	mu    sync.Mutex
	pd    *ib.PD
	mem   []byte
	free  []int
	bufs  chan []byte
	late  []*stream // their destruction may not have ended
	limit chan struct{}
}

type stream struct {
	p   *Pool
	qp  *ib.QP
	at  int
	buf []byte
}

func (p *Pool) Open() (*stream, error) {
	p.limit <- struct{}{}
	p.mu.Lock()
	defer p.mu.Unlock()
	qp, err := p.pd.CreateQP(ib.QPInitAttr{})
	if err != nil {
		return nil, err
	}
	s := &stream{p: p, qp: qp, at: p.free[0], buf: <-p.bufs}
	p.free = p.free[1:]
	clear(p.mem[s.at*64:][:64])
	return s, nil
}

func (s *stream) Close(ctx context.Context) error {
	err := s.qp.DestroyContext(ctx)
	<-s.p.limit // limits the open streams, and contains no memory
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if err != nil {
		s.p.late = append(s.p.late, s)
		return err
	}
	s.give()
	return nil
}

// Stop waits without a limit in another goroutine.
func (s *stream) Stop(ctx context.Context) error {
	err := s.qp.DestroyContext(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		go func() {
			if s.qp.Destroy() == nil {
				s.p.mu.Lock()
				defer s.p.mu.Unlock()
				s.give()
			}
		}()
		return err
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.give()
	return err
}

// End waits without a limit after a wait with one.
func (s *stream) End(ctx context.Context) error {
	err := s.qp.DestroyContext(ctx)
	if err != nil {
		err = s.qp.Destroy()
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.give()
	return err
}

// Sweep ends the destructions that were late.
func (p *Pool) Sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.late) > 0 {
		s := p.late[0]
		p.late = p.late[1:]
		if s.qp.Destroy() == nil {
			s.give()
		}
	}
}

func (s *stream) give() {
	s.p.free = append(s.p.free, s.at)
	s.p.bufs <- s.buf
}
