package once_value

import (
	"os"
	"sync"

	"verbena/ib"
)

type peer struct{ addr func() string }

func newPeer() *peer {
	return &peer{addr: sync.OnceValue(func() string {
		b, _ := os.ReadFile("/etc/peer") // want "nosleep: .*may sleep: it calls os.ReadFile"
		return string(b)
	})}
}

func Make(d *ib.Device) {
	p := newPeer()
	d.OnEvent(func(ib.Event) { _ = p.addr() })
}
