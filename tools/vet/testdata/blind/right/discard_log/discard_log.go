package discard_log

import (
	"bytes"
	"io"
	"log"

	"verbena/ib"
)

type dev struct{ log *log.Logger }

func newDev(w io.Writer) *dev {
	if w == nil {
		w = io.Discard
	}
	return &dev{log.New(w, "", 0)}
}

func Make(d *ib.Device) {
	var b bytes.Buffer
	v := newDev(&b)
	d.OnEvent(func(e ib.Event) { v.log.Println(e.Type) })
}
