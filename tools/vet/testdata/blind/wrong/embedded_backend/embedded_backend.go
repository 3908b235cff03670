package embedded_backend

import (
	"os"

	"verbena/ib"
)

type backend interface{ emit(string) }

type file struct{ f *os.File }

func (f file) emit(s string) { f.f.WriteString(s) } // want "nosleep: .*may sleep: it calls .*os.File.*WriteString"

type tracer struct{ backend }

type cq struct {
	ib.DriverCQ
	tracer
}

func newCQ(f *os.File) *cq { return &cq{tracer: tracer{file{f}}} }

func (c *cq) Poll(wc []ib.WC) (int, error) {
	c.emit("poll")
	return 0, nil
}
