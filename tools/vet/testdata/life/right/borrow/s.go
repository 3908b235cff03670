// Package borrow has a pool that returns a buffer together with the function that gives it back.
package borrow

import (
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type buffer struct {
	mem []byte
	mr  *ib.MR
}

// Pool holds buffers.
type Pool struct {
	mu   sync.Mutex
	free []*buffer
}

// Borrow takes a buffer.
func (p *Pool) Borrow() (*buffer, func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return b, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free = append(p.free, b)
	}
}

// Send waits for the completion before it gives the buffer back.
func Send(qp *completion.QP, p *Pool, data string) error {
	buf, give := p.Borrow()
	defer give()
	n := copy(buf.mem, data)
	done := make(chan ib.WCStatus, 1)
	if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: buf.mr.Addr(), Length: uint32(n),
		LKey: buf.mr.LKey()}}}, func(wc *ib.WC) { done <- wc.Status }); err != nil {
		return err
	}
	<-done
	return nil
}

// SendAll posts a list, and waits for each accepted request.
func SendAll(qp *ib.QP, cq *ib.CQ, p *Pool, wrs []ib.SendWR) error {
	_, give := p.Borrow()
	defer give()
	n, err := qp.PostSend(wrs...)
	wc := make([]ib.WC, 1)
	for n > 0 {
		k, e := cq.Poll(wc)
		if e != nil {
			return e
		}
		n -= k
	}
	return err
}

// Invalidate waits for the completion of an invalidation.
func Invalidate(qp *completion.QP, p *Pool) error {
	buf, give := p.Borrow()
	defer give()
	done := make(chan struct{})
	if err := qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: buf.mr.RKey()}, func(*ib.WC) { close(done) }); err != nil {
		return err
	}
	<-done
	return nil
}
