package stringer

import (
	"fmt"

	"verbena/ib"
)

type peer struct{ name string }

func (p *peer) String() string { return p.name }

func Make(d *ib.Device, p *peer) {
	d.OnEvent(func(ib.Event) { _ = fmt.Sprintf("%v", p) })
}
