// Package asserts_in_callback has callbacks that assert their own state, and callbacks that recover.
package asserts_in_callback

import (
	"fmt"
	"log"

	"verbena/ib"
	"verbena/ib/completion"
)

type state int

const (
	idle state = iota
	busy
	closed
)

func (s state) String() string {
	switch s {
	case idle:
		return "idle"
	case busy:
		return "busy"
	case closed:
		return "closed"
	}
	panic("unreachable")
}

type port struct {
	qp    *completion.QP
	buf   []byte
	state state
	count int
}

func (p *port) done(wc *ib.WC) {
	switch p.state {
	case idle, busy:
		p.state = idle
	case closed:
		return
	default:
		panic("unknown state")
	}
	if p.count--; p.count < 0 {
		panic(fmt.Sprintf("the count is %d", p.count))
	}
	if wc.Status == ib.WCSuccess {
		p.advance()
	}
}

func (p *port) advance() {
	if p.qp == nil {
		panic("not open: " + p.state.String())
	}
}

// guard recovers from panics of a decoder.
func guard(f func()) (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("decode: %v", x)
		}
	}()
	f()
	return nil
}

func (p *port) received(wc *ib.WC) {
	if err := guard(func() { decode(p.buf) }); err != nil {
		p.state = closed
	}
}

func decode(b []byte) {
	if len(b) == 0 || b[0] != 1 {
		panic("bad version")
	}
}

func (p *port) Start(sgl []ib.SGE) error {
	if err := p.qp.PostRecv(ib.RecvWR{SGList: sgl}, p.received); err != nil {
		log.Fatal(err) // not in a callback
	}
	return p.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sgl}, p.done)
}
