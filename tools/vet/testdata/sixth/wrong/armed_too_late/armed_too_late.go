// Package armed_too_late arms completion queues after the last poll.
package armed_too_late

import "verbena/ib"

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

func (p *port) handle(*ib.CQ) {
	p.drain()
	p.rearm() // want "arm: .*handle arms a completion queue after its last poll"
}

func (p *port) rearm() error {
	_, err := p.cq.ReqNotify(ib.NotifySolicited)
	return err
}

// ignoring ignores the report of missed completions.
func (p *port) ignoring(cq *ib.CQ) {
	var wcs [4]ib.WC
	for {
		n, _ := cq.Poll(wcs[:])
		p.done += n
		if n > 0 {
			continue
		}
		if _, err := arm(cq); err != nil { // want "arm: .*ignoring arms a completion queue after its last poll"
			p.done = -1
		}
		return
	}
}

func arm(cq *ib.CQ) (bool, error) {
	return cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
}

// once polls one batch.
func (p *port) once(cq *ib.CQ) {
	again := cq.ReqNotify
	var wcs [4]ib.WC
	n, _ := cq.Poll(wcs[:])
	p.done += n
	again(ib.NotifyNextComp) // want "arm: .*once arms a completion queue after its last poll"
}

func open(d *ib.Device) error {
	p := &port{}
	for _, h := range []func(*ib.CQ){p.handle, p.ignoring, p.once} {
		if _, err := d.CreateCQ(ib.CQInit{Entries: 8, Handler: h}); err != nil {
			return err
		}
	}
	return nil
}
