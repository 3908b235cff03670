package faulty

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
)

const (
	records    = 4
	recordSize = 64
)

// Batch writes records to its own memory, several records by one post.
type Batch struct {
	pd    *ib.PD
	cq    *ib.CQ
	qp    *ib.QP
	mrs   [records]*ib.MR // each contains a record, and then its target
	mem   [records][2 * recordSize]byte
	inUse [records]bool
	wcs   [records]ib.WC
	done  sync.WaitGroup // functions that count completions
	count atomic.Int64   // of failures
}

// OpenBatch creates a batch. After an error no object is left.
func OpenBatch(d *ib.Device) (_ *Batch, err error) {
	b := &Batch{}
	here, err := d.Local(1)
	if err != nil {
		return nil, err
	}
	if b.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if b.cq, err = d.CreateCQ(ib.CQInit{Entries: records}); err != nil {
		return nil, errors.Join(err, b.pd.Dealloc())
	}
	if b.qp, err = b.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: b.cq, RecvCQ: b.cq, SigAll: true,
		Cap: ib.QPCap{MaxSendWR: records, MaxSendSGE: 1}}); err != nil {
		return nil, errors.Join(err, b.cq.Destroy(), b.pd.Dealloc())
	}
	for i := range b.mrs {
		b.mrs[i], err = b.pd.RegBytes(b.mem[i][:], ib.AccessLocalWrite|ib.AccessRemoteWrite)
		if err != nil {
			return nil, errors.Join(err, b.destroy())
		}
	}
	self := here.Endpoint(b.qp)
	if err := b.qp.Connect(here, self, self, ib.Path{Access: ib.AccessRemoteWrite}); err != nil {
		return nil, errors.Join(err, b.destroy())
	}
	return b, nil
}

// Post writes n records. If it fails, the caller may repeat the call.
func (b *Batch) Post(n int) error {
	for i := range n {
		if b.inUse[i] {
			return syscall.EAGAIN
		}
	}
	wrs := b.fill(n)
	posted, err := b.qp.PostSend(wrs...)
	if has("partial") && err != nil {
		posted = 0
	}
	clear(b.inUse[posted:])
	return err
}

// fill fills n records, and returns the requests that write them.
func (b *Batch) fill(n int) (wrs []ib.SendWR) {
	for i := range n {
		b.mem[i][0]++
		b.inUse[i] = true
		wrs = append(wrs, ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite,
			SGList:     []ib.SGE{{Addr: b.mrs[i].Addr(), Length: recordSize, LKey: b.mrs[i].LKey()}},
			RemoteAddr: b.mrs[i].Addr() + recordSize, RKey: b.mrs[i].RKey()})
	}
	return wrs
}

// Send writes n records and waits for them. After an error the caller must close the batch.
func (b *Batch) Send(n int) error {
	posted, err := b.qp.PostSend(b.fill(n)...)
	clear(b.inUse[posted:])
	if err != nil {
		return err
	}
	return b.Flush()
}

// Flush waits for all records.
func (b *Batch) Flush() (err error) {
	for end := time.Now().Add(5 * time.Second); b.inUse != [records]bool{}; time.Sleep(50 * time.Microsecond) {
		n, perr := b.cq.Poll(b.wcs[:])
		for i, w := range b.wcs[:n] {
			of := &w
			if has("element") {
				of = &b.wcs[i]
			}
			b.done.Go(func() {
				if of.Status != ib.WCSuccess {
					b.count.Add(1)
				}
			})
			b.inUse[w.ID] = false
			if w.Status != ib.WCSuccess {
				err = syscall.EIO
			}
		}
		if perr != nil || time.Now().After(end) {
			return syscall.ETIMEDOUT
		}
	}
	return err
}

// Close waits for the records and destroys the batch.
func (b *Batch) Close() error {
	err := b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
	if err == nil {
		b.Flush() // the records are flushed
	}
	return errors.Join(err, b.destroy())
}

func (b *Batch) destroy() (err error) {
	b.done.Wait()
	if has("order") {
		err = b.cq.Destroy()
	}
	err = errors.Join(err, b.qp.Destroy())
	if !has("order") {
		err = errors.Join(err, b.cq.Destroy())
	}
	for _, mr := range b.mrs {
		if mr != nil {
			err = errors.Join(err, mr.Dereg())
		}
	}
	return errors.Join(err, b.pd.Dealloc())
}
