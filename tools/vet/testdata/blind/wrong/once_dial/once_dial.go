package once_dial

import (
	"net"
	"sync"

	"verbena/ib"
)

type peer struct {
	once sync.Once
	conn net.Conn
}

func (p *peer) connect() {
	p.once.Do(func() {
		p.conn, _ = net.Dial("tcp", "peer:1") // want "nosleep: .*may sleep: it calls net.Dial"
	})
}

func Watch(d *ib.Device, p *peer) {
	d.OnEvent(func(e ib.Event) {
		if e.Type == ib.EventPortActive {
			p.connect()
		}
	})
}
