// Package header_method dispatches messages by the type in their header.
package header_method

import (
	"encoding/binary"

	"verbena/ib"
	"verbena/ib/completion"
)

type header struct {
	kind uint16
	n    uint32
}

type message struct{ buf []byte }

func (m message) header() header {
	return header{kind: binary.BigEndian.Uint16(m.buf), n: binary.BigEndian.Uint32(m.buf[2:])}
}

type server struct {
	qp       *completion.QP
	mr       *ib.MR
	mem      []byte
	handlers map[uint16]func([]byte)
	failed   int
}

// Handle sets the function for a type of messages.
func (s *server) Handle(kind uint16, f func([]byte)) { s.handlers[kind] = f }

// Post posts the receive of a slot.
func (s *server) Post(slot int) error {
	m := message{s.mem[slot*512:][:512]}
	sg := []ib.SGE{{Addr: s.mr.Addr() + uint64(slot)*512, Length: 512, LKey: s.mr.LKey()}}
	return s.qp.PostRecv(ib.RecvWR{SGList: sg}, func(wc *ib.WC) {
		s.dispatch(m, wc)
		if wc.Status == ib.WCSuccess && s.Post(slot) != nil {
			s.failed++
		}
	})
}

func (s *server) dispatch(m message, wc *ib.WC) {
	h := m.header() // want "status: .* reads bytes before the status"
	f, ok := s.handlers[h.kind]
	if !ok {
		s.failed++
		return
	}
	if wc.Status != ib.WCSuccess {
		s.failed++
		return
	}
	f(m.buf[6:][:min(int(h.n), 506)])
}

// New returns a server without handlers.
func New(qp *completion.QP, mr *ib.MR, mem []byte) *server {
	return &server{qp: qp, mr: mr, mem: mem, handlers: map[uint16]func([]byte){}}
}
