// Package status_loop stores received messages in a file.
package status_loop

import (
	"os"
	"time"

	"verbena/ib"
	"verbena/ib/completion"
)

// Option changes the parameters of the queue.
type Option func(*completion.Init)

// Entries sets the size.
func Entries(n int) Option { return func(i *completion.Init) { i.Entries = n } }

func onWorker(i *completion.Init) { i.Context = completion.Worker }

// Store is a file.
type Store struct {
	f   *os.File
	qp  *completion.QP
	mr  *ib.MR
	buf []byte
}

// New makes the store.
func New(d *ib.Device, pd *ib.PD, f *os.File, opts ...Option) (*Store, error) {
	var init completion.Init
	for _, o := range append(opts, onWorker) {
		o(&init)
	}
	cq, err := completion.New(d, init)
	if err != nil {
		return nil, err
	}
	s := &Store{f: f, buf: make([]byte, 4096)}
	if s.mr, err = pd.RegBytes(s.buf, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	s.qp, err = cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxRecvWR: 4, MaxRecvSGE: 1}})
	return s, err
}

// Receive posts a receive.
func (s *Store) Receive() error {
	return s.qp.PostRecv(ib.RecvWR{SGList: []ib.SGE{{Addr: s.mr.Addr(), Length: 4096, LKey: s.mr.LKey()}}}, s.received)
}

func (s *Store) received(wc *ib.WC) {
	if wc.Status != ib.WCSuccess {
		return
	}
	for {
		if _, err := s.f.Write(s.buf[:wc.ByteLen]); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	_ = s.Receive()
}
