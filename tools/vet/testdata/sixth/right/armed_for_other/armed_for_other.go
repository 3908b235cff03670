// Package armed_for_other has a handler that need not see all completions: another thread polls.
package armed_for_other

import (
	"time"

	"verbena/ib"
)

type port struct {
	cq   *ib.CQ
	done int
}

func (p *port) poll() int {
	var wcs [8]ib.WC
	n, _ := p.cq.Poll(wcs[:])
	return n
}

func (p *port) handle(*ib.CQ) {
	for p.poll() > 0 {
	}
	p.cq.ReqNotify(ib.NotifyNextComp)
}

func (p *port) watch() {
	for range time.Tick(time.Second) {
		p.done += p.poll()
	}
}

// Start starts the thread.
func Start(d *ib.Device) (err error) {
	p := &port{}
	p.cq, err = d.CreateCQ(ib.CQInit{Entries: 8, Handler: p.handle})
	go p.watch()
	return err
}
