// Package partial_deferred sends a message in several fragments.
package partial_deferred

import (
	"verbena/ib"
)

type frag struct {
	mem  []byte
	addr uint64
	lkey uint32
}

type stream struct {
	qp   *ib.QP
	free chan *frag
	busy map[uint64]*frag
	next uint64
}

func (s *stream) release(fs []*frag) {
	for _, f := range fs {
		s.free <- f
	}
}

func (s *stream) take(n int) (fs []*frag) {
	for range n {
		fs = append(fs, <-s.free)
	}
	return fs
}

// Send copies b to fragments and posts all of them as one list.
func (s *stream) Send(b []byte, size int) (err error) {
	fs := s.take((len(b) + size - 1) / size)
	defer func() {
		if err != nil {
			s.release(fs)
		}
	}()
	wrs := make([]ib.SendWR, 0, len(fs))
	for _, f := range fs {
		n := copy(f.mem[:size], b)
		b = b[n:]
		wrs = append(wrs, ib.SendWR{ID: s.next, Opcode: ib.WRSend, Flags: ib.SendSignaled,
			SGList: []ib.SGE{{Addr: f.addr, Length: uint32(n), LKey: f.lkey}}})
		s.busy[s.next] = f
		s.next++
	}
	_, err = s.qp.PostSend(wrs...) // want "release: .* ignores the number of accepted work requests"
	return err
}

// Reap takes completions from the queue.
func (s *stream) Reap(cq *ib.CQ) error {
	var wcs [16]ib.WC
	n, err := cq.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		if f := s.busy[wc.ID]; f != nil {
			delete(s.busy, wc.ID)
			s.free <- f
		}
	}
	return err
}
