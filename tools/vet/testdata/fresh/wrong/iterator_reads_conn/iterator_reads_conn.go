// Package iterator_reads_conn: the event function ranges over an iterator that reads from a connection.
package iterator_reads_conn

import (
	"iter"
	"net"

	"verbena/ib"
)

type Peer struct{ conn net.Conn }

func (p *Peer) messages() iter.Seq[byte] {
	return func(yield func(byte) bool) {
		var b [1]byte
		for {
			if _, err := p.conn.Read(b[:]); err != nil { // want "nosleep"
				return
			}
			if !yield(b[0]) {
				return
			}
		}
	}
}

// Watch listens for the device's events.
func (p *Peer) Watch(d *ib.Device) (stop func()) {
	return d.OnEvent(func(ib.Event) {
		for m := range p.messages() {
			if m == 0 {
				break
			}
		}
	})
}
