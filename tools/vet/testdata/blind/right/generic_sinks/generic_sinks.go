package generic_sinks

import (
	"verbena/ib"
)

type sink[T any] interface{ put(T) }

type blocking[T any] struct{ c chan T }

func (b blocking[T]) put(v T) { b.c <- v }

type dropping[T any] struct{ c chan T }

func (d dropping[T]) put(v T) {
	select {
	case d.c <- v:
	default:
	}
}

func forward[T any, S sink[T]](s S, list []T) {
	for _, v := range list {
		s.put(v)
	}
}

func Make(d *ib.Device, log chan int) {
	forward(blocking[int]{log}, []int{1, 2})
	out := dropping[int]{log}
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { forward(out, []int{3}) }})
}
