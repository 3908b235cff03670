package pipe_writer

import (
	"fmt"
	"io"

	"verbena/ib"
)

type exporter struct{ w io.Writer }

func newExporter() *exporter {
	r, w := io.Pipe()
	go io.Copy(io.Discard, r)
	return &exporter{w}
}

func (e *exporter) handler(cq *ib.CQ) { fmt.Fprintln(e.w, "done") } // want "nosleep: .*may sleep: it calls fmt.Fprintln"

func Make(d *ib.Device) {
	d.CreateCQ(ib.CQInit{Handler: newExporter().handler})
}
