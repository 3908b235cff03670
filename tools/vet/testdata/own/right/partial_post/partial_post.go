package partial_post

import (
	"errors"

	"verbena/ib"
)

// Writer writes records from slots.
type Writer struct {
	qp     *ib.QP
	inUse  [8]bool
	failed [8]bool
	free   chan int
}

func (w *Writer) Post(wrs []ib.SendWR) error {
	for i := range wrs {
		w.inUse[i] = true
	}
	n, err := w.qp.PostSend(wrs...)
	for i := n; i < len(wrs); i++ {
		w.inUse[i] = false
	}
	return err
}

// PostOne posts a single request, of which nothing can be accepted if the post fails.
func (w *Writer) PostOne(wr ib.SendWR) error {
	i := <-w.free
	if _, err := w.qp.PostSend(wr); err != nil {
		w.free <- i
		return err
	}
	return nil
}

// PostOrEnd ends the queue pair after an error, before it gives the slots back.
func (w *Writer) PostOrEnd(wrs []ib.SendWR) error {
	for i := range wrs {
		w.inUse[i] = true
	}
	if _, err := w.qp.PostSend(wrs...); err != nil {
		err = errors.Join(err, w.qp.Destroy())
		for i := range wrs {
			w.inUse[i] = false
		}
		return err
	}
	return nil
}

// PostOrMark keeps the slots after an error.
func (w *Writer) PostOrMark(wrs []ib.SendWR) error {
	for i := range wrs {
		w.inUse[i] = true
	}
	if _, err := w.qp.PostSend(wrs...); err != nil {
		for i := range wrs {
			w.failed[i] = true
		}
		return err
	}
	return nil
}
