package partial_post

import "verbena/ib"

// Writer writes records from slots.
type Writer struct {
	qp    *ib.QP
	srq   *ib.SRQ
	inUse [8]bool
	free  chan int
	list  []int
}

func (w *Writer) Post(wrs []ib.SendWR) error {
	for i := range wrs {
		w.inUse[i] = true
	}
	if _, err := w.qp.PostSend(wrs...); err != nil { // want "release: .*Post ignores the number of accepted work requests, and after an error gives back inUse"
		w.release(len(wrs))
		return err
	}
	return nil
}

func (w *Writer) release(n int) {
	for i := range n {
		w.inUse[i] = false
	}
}

func (w *Writer) PostRecv(a, b ib.RecvWR) (err error) {
	x, y := <-w.free, <-w.free
	if _, err = w.qp.PostRecv(a, b); err == nil { // want "release: .*gives back free"
		return nil
	}
	w.free <- x
	w.free <- y
	return err
}

func (w *Writer) Fill(wrs ...ib.RecvWR) error {
	slots := w.list[:len(wrs)]
	w.list = w.list[len(wrs):]
	_, err := w.srq.PostRecv(wrs...) // want "release: .*gives back list"
	if err != nil {
		w.list = append(w.list, slots...)
	}
	return err
}
