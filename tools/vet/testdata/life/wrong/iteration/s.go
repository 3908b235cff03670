// Package iteration makes mistakes that the next iteration of a loop shows.
package iteration

import (
	"context"

	"verbena/ib"
	"verbena/verbs"
)

// stream fills the buffer of the previous message.
func stream(qp *verbs.QP, mr *verbs.MR, in <-chan string) error {
	for i := range 8 {
		mr.Bytes()[0] = byte(i) // want "life: .* changes memory that a posted request sends"
		if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(0, 64)}); err != nil {
			return err
		}
	}
	return nil
}

// retry uses the destroyed queue pair.
func retry(qp *ib.QP, wr ib.SendWR) (err error) {
	for range 3 {
		if _, err = qp.PostSend(wr); err == nil { // want "life: .* calls QP.PostSend with an object that it has ended"
			return nil
		}
		_ = qp.Destroy()
	}
	return err
}

// waitLate waits only after the last message.
func waitLate(qp *verbs.QP, cq *verbs.CQ, mr *verbs.MR, wc []verbs.WC) error {
	for i := 0; i < 3; i++ {
		copy(mr.Bytes(), "text") // want "life: .* changes memory that a posted request sends"
		if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(0, 64)}); err != nil {
			return err
		}
	}
	_, err := cq.Wait(context.Background(), wc)
	return err
}
