package wrapped

import (
	"verbena/ib"
)

// SRQ is wrapped by another, whose receives are posted by a function value.
type inner struct {
	ib.DriverSRQ
	slots []uint64
}

func (s *inner) put(wr ib.RecvWR) { s.slots = append(s.slots, wr.ID) }

type SRQ struct {
	*inner
	post func(ib.RecvWR)
}

func New(s *inner) *SRQ { return &SRQ{inner: s, post: s.put} }

func (s *SRQ) PostRecv(wrs []ib.RecvWR) (int, error) {
	for _, wr := range wrs {
		s.post(wr)
	}
	return len(wrs), nil
}
