// Package close_with_lock closes queue pairs with a lock that no callback takes.
package close_with_lock

import (
	"context"
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type hub struct {
	mu    sync.Mutex
	cq    *completion.CQ
	pd    *ib.PD
	conns []*completion.QP
}

func (h *hub) Accept(peer ib.Endpoint) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	qp, err := h.cq.CreateQP(h.pd, ib.QPInitAttr{})
	if err != nil {
		return err
	}
	if err := qp.PostRecv(ib.RecvWR{}, nil); err != nil {
		return h.drop(qp)
	}
	h.conns = append(h.conns, qp)
	return nil
}

func (h *hub) drop(qp *completion.QP) error { return qp.Destroy() }

func (h *hub) Close(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, qp := range h.conns {
		qp.Close(ctx)
	}
	h.cq.Destroy()
}

// CloseAll closes objects by method values.
func (h *hub) CloseAll(mrs []*ib.MR) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []func() error
	for _, mr := range mrs {
		all = append(all, mr.Dereg)
	}
	for _, f := range append(all, h.pd.Dealloc) {
		f()
	}
}
