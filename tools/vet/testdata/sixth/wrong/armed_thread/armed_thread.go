// Package armed_thread has a thread that arms after its last poll, and a handler beside a thread for another queue.
package armed_thread

import "verbena/ib"

// loop is a thread that a handler wakes.
type loop struct {
	cq    *ib.CQ
	other *ib.CQ
	wake  chan struct{}
	stop  chan struct{}
	n     int
}

func (l *loop) woken(*ib.CQ) {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *loop) run() {
	var wcs [4]ib.WC
	for {
		n, err := l.cq.Poll(wcs[:])
		if err != nil {
			return
		}
		l.n += n
		if n > 0 {
			continue
		}
		l.cq.ReqNotify(ib.NotifyNextComp) // want "arm: .*run arms a completion queue after its last poll"
		if !l.wait() {
			return
		}
	}
}

func (l *loop) wait() bool {
	select {
	case <-l.wake:
		return true
	case <-l.stop:
		return false
	}
}

// deferred arms at its end. The thread polls another queue.
func (l *loop) deferred(cq *ib.CQ) {
	defer cq.ReqNotify(ib.NotifyNextComp) // want "arm: .*deferred arms a completion queue after its last poll"
	var wcs [4]ib.WC
	for {
		n, err := cq.Poll(wcs[:])
		if n == 0 || err != nil {
			return
		}
		l.n += n
	}
}

// Start starts the thread.
func Start(d *ib.Device) error {
	l := &loop{wake: make(chan struct{}, 1), stop: make(chan struct{})}
	cq, err := d.CreateCQ(ib.CQInit{Entries: 8, Handler: l.woken})
	l.cq = cq
	go l.run()
	return err
}

// Second creates the other queue.
func (l *loop) Second(d *ib.Device) (err error) {
	l.other, err = d.CreateCQ(ib.CQInit{Entries: 8, Handler: l.deferred})
	return err
}
