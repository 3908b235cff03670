package cond_signal

import (
	"sync"
	"time"

	"verbena/ib"
)

type worker struct {
	mu   sync.Mutex
	cond sync.Cond
	due  []uint64
}

func newWorker() *worker {
	w := &worker{}
	w.cond.L = &w.mu
	go w.run()
	return w
}

func (w *worker) run() {
	for {
		w.mu.Lock()
		for len(w.due) == 0 {
			w.cond.Wait()
		}
		due := w.due
		w.due = nil
		w.mu.Unlock()
		time.Sleep(time.Duration(len(due)))
	}
}

func (w *worker) add(id uint64) {
	w.mu.Lock()
	w.due = append(w.due, id)
	w.mu.Unlock()
	w.cond.Signal()
}

func Make(d *ib.Device) {
	w := newWorker()
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { w.add(1) }})
}
