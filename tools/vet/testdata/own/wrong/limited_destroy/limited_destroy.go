package limited_destroy

import (
	"context"
	"sync"

	"verbena/ib"
)

// Pool lends memory to queue pairs.
type Pool struct {
	mu   sync.Mutex
	pd   *ib.PD
	mem  []byte
	free []int
	bufs chan []byte
}

type stream struct {
	p   *Pool
	qp  *ib.QP
	at  int
	buf []byte
}

func (p *Pool) Open() (*stream, error) {
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
	err := s.qp.DestroyContext(ctx) // want "release: .*Close gives memory to free also if DestroyContext has not ended in time"
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.free = append(s.p.free, s.at)
	return err
}

func (s *stream) Stop(ctx context.Context) error {
	err := s.qp.DestroyContext(ctx) // want "release: .*Stop gives memory to bufs"
	if err != nil {
		s.give()
		return err
	}
	s.give()
	return nil
}

func (s *stream) give() { s.p.bufs <- s.buf }
