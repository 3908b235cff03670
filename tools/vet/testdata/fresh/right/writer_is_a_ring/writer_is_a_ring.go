// Package writer_is_a_ring: the completion handler writes to an io.Writer that is a ring in memory; a file is written elsewhere.
package writer_is_a_ring

import (
	"io"
	"os"
	"sync"

	"verbena/ib"
)

type ring struct {
	mu  sync.Mutex
	buf [256]byte
	at  int
}

// Write implements io.Writer. It does not sleep.
func (r *ring) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range b {
		r.buf[r.at%len(r.buf)] = c
		r.at++
	}
	return len(b), nil
}

type tracer struct{ out io.Writer }

// Open makes a traced queue.
func Open(d *ib.Device) (*ib.CQ, error) {
	t := &tracer{out: &ring{}}
	return d.CreateCQ(ib.CQInit{Entries: 16, Handler: t.completed})
}

func (t *tracer) completed(cq *ib.CQ) {
	_, _ = cq.ReqNotify(ib.NotifyNextComp)
	var wc [16]ib.WC
	n, _ := cq.Poll(wc[:])
	for _, w := range wc[:n] {
		_, _ = t.out.Write([]byte{byte(w.Status), '\n'})
	}
}

// Save saves a report.
func Save(f *os.File, report []byte) error {
	_, err := f.Write(report)
	return err
}
