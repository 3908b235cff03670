package limit_once

import "verbena/ib"

// Server posts receives when the queue runs low, but arms the event only once.
type Server struct {
	srq  *ib.SRQ
	low  chan struct{}
	quit chan struct{}
	free []ib.RecvWR
}

func Start(pd *ib.PD) (*Server, error) {
	s := &Server{low: make(chan struct{}, 1), quit: make(chan struct{})}
	var err error
	if s.srq, err = pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 16, MaxSGE: 1}, Event: s.event}); err != nil {
		return nil, err
	}
	s.fill()
	if err := s.srq.Modify(ib.SRQAttr{Limit: 4}, ib.SRQAttrLimit); err != nil { // want "event: .*Start arms the limit of a shared receive queue, which is not armed again"
		return nil, err
	}
	go s.run()
	return s, nil
}

func (s *Server) run() {
	for {
		select {
		case <-s.low:
			s.fill()
		case <-s.quit:
			return
		}
	}
}

func (s *Server) event(_ *ib.SRQ, e ib.EventType) {
	if e == ib.EventSRQLimitReached {
		select {
		case s.low <- struct{}{}:
		default:
		}
	}
}

func (s *Server) fill() {
	for _, wr := range s.free {
		if _, err := s.srq.PostRecv(wr); err != nil {
			return
		}
	}
}

func (s *Server) Stop() { close(s.quit) }
