// Package writer_is_a_file: the completion handler writes to an io.Writer that is a file.
package writer_is_a_file

import (
	"io"
	"os"

	"verbena/ib"
)

type tracer struct {
	out io.Writer
	cq  *ib.CQ
}

// Open makes a tracer that writes to a file.
func Open(d *ib.Device, path string) (*tracer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	t := &tracer{out: f}
	t.cq, err = d.CreateCQ(ib.CQInit{Entries: 16, Handler: t.completed})
	return t, err
}

func (t *tracer) completed(cq *ib.CQ) {
	_, _ = cq.ReqNotify(ib.NotifyNextComp)
	var wc [16]ib.WC
	for {
		n, err := cq.Poll(wc[:])
		if n == 0 || err != nil {
			break
		}
		for _, w := range wc[:n] {
			t.line(byte(w.Status))
		}
	}
}

func (t *tracer) line(status byte) {
	_, _ = t.out.Write([]byte{status, '\n'}) // want "nosleep"
}
