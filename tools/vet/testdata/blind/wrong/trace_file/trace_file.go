package trace_file

import (
	"bufio"
	"fmt"
	"os"

	"verbena/ib"
)

type trace struct {
	w *bufio.Writer
}

func open(path string) (*trace, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &trace{bufio.NewWriter(f)}, nil
}

func (t *trace) note(what string) {
	fmt.Fprintf(t.w, "%s\n", what) // want "nosleep: .*may sleep: it calls fmt.Fprintf"
}

func (t *trace) handler(cq *ib.CQ) { t.note("completion") }

func Make(d *ib.Device) (*ib.CQ, error) {
	t, err := open("/tmp/trace")
	if err != nil {
		return nil, err
	}
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: t.handler})
}
