// Package armed_in_time polls after it has armed, or learns of missed completions.
package armed_in_time

import (
	"time"

	"verbena/ib"
)

type port struct {
	cq   *ib.CQ
	wcs  [8]ib.WC
	done int
}

func (p *port) drain() {
	for {
		n, err := p.cq.Poll(p.wcs[:])
		if n == 0 || err != nil {
			return
		}
		p.done += n
	}
}

// first arms first.
func (p *port) first(*ib.CQ) {
	if _, err := p.cq.ReqNotify(ib.NotifyNextComp); err != nil {
		return
	}
	p.drain()
}

// between polls before and after.
func (p *port) between(*ib.CQ) {
	defer p.drain()
	p.drain()
	p.cq.ReqNotify(ib.NotifyNextComp)
	p.drain()
}

func (p *port) rearm() bool {
	missed, err := p.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
	return missed && err == nil
}

func (p *port) reported(*ib.CQ) {
	for {
		p.drain()
		if !p.rearm() {
			return
		}
	}
}

func open(d *ib.Device) error {
	p := &port{}
	for _, h := range []func(*ib.CQ){p.first, p.between, p.reported} {
		cq, err := d.CreateCQ(ib.CQInit{Entries: 8, Handler: h})
		if err != nil {
			return err
		}
		p.cq = cq
		if _, err := cq.ReqNotify(ib.NotifyNextComp); err != nil {
			return err
		}
	}
	return nil
}

// loop is a thread that polls again at least every millisecond.
type loop struct {
	cq   *ib.CQ
	wake chan struct{}
	n    int
}

func (l *loop) run() {
	var wcs [4]ib.WC
	for {
		n, err := l.cq.Poll(wcs[:])
		if err != nil {
			return
		}
		if l.n += n; n > 0 {
			continue
		}
		l.cq.ReqNotify(ib.NotifyNextComp)
		select {
		case <-l.wake:
		case <-time.After(time.Millisecond):
		}
	}
}

// Start starts the thread.
func Start(d *ib.Device) error {
	l := &loop{wake: make(chan struct{}, 1)}
	cq, err := d.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}})
	l.cq = cq
	go l.run()
	return err
}
