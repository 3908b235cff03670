package stringer

import (
	"fmt"
	"net"
	"sync"

	"verbena/ib"
)

type peer struct {
	mu   sync.Mutex
	conn net.Conn
	name string
}

func (p *peer) String() string {
	p.mu.Lock() // want "nosleep: .*may sleep: it locks stringer.peer.mu, which is held at"
	defer p.mu.Unlock()
	return p.name
}

func (p *peer) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := make([]byte, 10)
	p.conn.Read(b)
	p.name = string(b)
}

func Make(d *ib.Device, p *peer) {
	go p.refresh()
	var errs []error
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { errs = append(errs, fmt.Errorf("lost %v", p)) }})
}
