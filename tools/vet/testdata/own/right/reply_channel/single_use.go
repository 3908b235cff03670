package reply_channel

import (
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

// Ring waits for the end of a run by a channel that the first end takes out of its field.
type Ring struct {
	qp *completion.QP

	mu  sync.Mutex
	end chan error
}

func OpenRing(d *ib.Device, pd *ib.PD) (*Ring, error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{})
	return &Ring{qp: qp}, err
}

func (r *Ring) finish(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		r.end <- err
		r.end = nil
	}
}

func (r *Ring) Run() error {
	end := make(chan error, 1)
	r.mu.Lock()
	r.end = end
	r.mu.Unlock()
	for range 2 {
		if err := r.qp.PostSend(ib.SendWR{}, func(*ib.WC) { r.finish(nil) }); err != nil {
			r.finish(err)
		}
	}
	return <-end
}

// Link has a channel for each request in a map.
type Link struct {
	cq *ib.CQ
	qp *ib.QP

	mu      sync.Mutex
	pending map[uint64]chan ib.WCStatus
}

func OpenLink(d *ib.Device) (l *Link, err error) {
	l = &Link{pending: map[uint64]chan ib.WCStatus{}}
	l.cq, err = d.CreateCQ(ib.CQInit{Entries: 4, Handler: l.completed})
	return l, err
}

func (l *Link) completed(cq *ib.CQ) {
	var wc [4]ib.WC
	n, _ := cq.Poll(wc[:])
	for _, w := range wc[:n] {
		l.mu.Lock()
		l.pending[w.ID] <- w.Status
		delete(l.pending, w.ID)
		l.mu.Unlock()
	}
}

func (l *Link) Send(id uint64) ib.WCStatus {
	status := make(chan ib.WCStatus, 1)
	l.mu.Lock()
	l.pending[id] = status
	l.mu.Unlock()
	if _, err := l.qp.PostSend(ib.SendWR{ID: id}); err != nil {
		return ib.WCFatalErr
	}
	return <-status
}
