package limit_unneeded

import "verbena/ib"

// Server posts each receive again when it has completed. The event only counts, so it is armed once.
type Server struct {
	srq  *ib.SRQ
	low  chan struct{}
	Runs int
}

func Start(pd *ib.PD) (*Server, error) {
	s := &Server{low: make(chan struct{}, 1)}
	var err error
	if s.srq, err = pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 16, MaxSGE: 1}, Event: s.event}); err != nil {
		return nil, err
	}
	return s, s.srq.Modify(ib.SRQAttr{Limit: 4}, ib.SRQAttrLimit)
}

func (s *Server) event(_ *ib.SRQ, e ib.EventType) {
	if e == ib.EventSRQLimitReached {
		select {
		case s.low <- struct{}{}:
		default:
		}
	}
}

// Count counts the events.
func (s *Server) Count() {
	for range s.low {
		s.Runs++
	}
}

func (s *Server) handle(cq *ib.CQ) {
	var wc [4]ib.WC
	n, err := cq.Poll(wc[:])
	for i := range wc[:n] {
		if _, err = s.srq.PostRecv(ib.RecvWR{ID: wc[i].ID}); err != nil {
			return
		}
	}
}

func (s *Server) Queue(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 16, Handler: s.handle})
}
