// Package forwarded_reply passes done functions to a helper that posts, and makes them in a helper.
package forwarded_reply

import (
	"verbena/ib"
	"verbena/ib/completion"
)

// Link is a connection.
type Link struct{ qp *completion.QP }

func (l *Link) post(wr ib.SendWR, f completion.Done) error {
	wr.Flags |= ib.SendSolicited
	return l.qp.PostSend(wr, f)
}

func (l *Link) write(sgl []ib.SGE, f completion.Done) error {
	if len(sgl) == 0 {
		return l.post(ib.SendWR{Opcode: ib.WRRDMAWrite}, f)
	}
	return l.post(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: sgl}, f)
}

// Write writes, and waits.
func (l *Link) Write(sgl []ib.SGE) (ib.WCStatus, error) {
	status := make(chan ib.WCStatus, 1)
	if err := l.write(sgl, func(wc *ib.WC) { status <- wc.Status }); err != nil {
		return 0, err
	}
	return <-status, nil
}

func sendTo(c chan<- ib.WCStatus) completion.Done { return func(wc *ib.WC) { c <- wc.Status } }

// Flush sends, and waits.
func (l *Link) Flush() (ib.WCStatus, error) {
	status := make(chan ib.WCStatus, 1)
	if err := l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, sendTo(status)); err != nil {
		return 0, err
	}
	return <-status, nil
}

// FlushAll sends n messages, and waits for all.
func (l *Link) FlushAll(n int) error {
	all := make(chan ib.WCStatus, n)
	for i := range n {
		if err := l.post(ib.SendWR{Opcode: ib.WRSend}, sendTo(all)); err != nil {
			for range i {
				<-all
			}
			return err
		}
	}
	for range n {
		<-all
	}
	return nil
}
