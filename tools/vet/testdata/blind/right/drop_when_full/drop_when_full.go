package drop_when_full

import (
	"verbena/ib"
)

type events struct{ c chan ib.Event }

func (e *events) offer(v ib.Event) (ok bool) {
	for {
		select {
		case e.c <- v:
			return true
		default:
		}
		select {
		case <-e.c: // the oldest
		default:
			return false
		}
	}
}

func Watch(d *ib.Device, e *events) { d.OnEvent(func(v ib.Event) { e.offer(v) }) }
