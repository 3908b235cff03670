// Package with_closure reads blocks of a remote disk.
package with_closure

import (
	"context"
	"fmt"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/completion"
)

type session struct {
	qp   *completion.QP
	mr   *ib.MR
	rkey uint32
}

type call struct{ result chan ib.WCStatus }

func (c *call) complete(wc *ib.WC) { c.result <- wc.Status }

func (c *call) wait() error {
	if st := <-c.result; st != ib.WCSuccess {
		return fmt.Errorf("read: %v", st)
	}
	return nil
}

// Disk is a remote disk.
type Disk struct{ a *attach.Attachment[*session] }

// with calls f with the present session.
func (d *Disk) with(ctx context.Context, f func(*session) error) error {
	s, err := d.a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer d.a.Release()
	return f(s)
}

// ReadAt reads n bytes at offset at.
func (d *Disk) ReadAt(ctx context.Context, at uint64, n uint32) error {
	c := &call{result: make(chan ib.WCStatus, 1)}
	err := d.with(ctx, func(s *session) error {
		wr := ib.SendWR{Opcode: ib.WRRDMARead, RemoteAddr: at, RKey: s.rkey,
			SGList: []ib.SGE{{Addr: s.mr.Addr(), Length: n, LKey: s.mr.LKey()}}}
		return s.qp.PostSend(wr, c.complete)
	})
	if err != nil {
		return err
	}
	return c.wait()
}

// Open follows the device with this name.
func Open(core *ib.Core, name string, connect func(context.Context, *ib.Device, func(error)) (*session, error)) (*Disk, error) {
	a, err := attach.New(core, attach.Config[*session]{Name: "disk", Device: attach.Identity{Name: name}, Attach: connect,
		Detach: func(_ *ib.Device, s *session) { _ = s.qp.Destroy(); _ = s.mr.Dereg() }})
	return &Disk{a}, err
}
