// Package close_list ends connections within a fixed time.
package close_list

import (
	"context"
	"sync"
	"time"

	"verbena/ib"
	"verbena/ib/completion"
)

var bufs = sync.Pool{New: func() any { return &block{mem: make([]byte, 4096)} }}

type block struct {
	mem []byte
	mr  *ib.MR
}

type link struct {
	qp     *completion.QP
	blocks []*block
}

// Post gives a new block to the peer.
func (l *link) Post() error {
	var b *block
	if len(free) > 0 {
		b, free = free[0], free[1:]
	} else {
		b = bufs.Get().(*block)
	}
	if b.mr == nil {
		mr, err := l.qp.PD().RegBytes(b.mem, ib.AccessLocalWrite)
		if err != nil {
			return err
		}
		b.mr = mr
	}
	l.blocks = append(l.blocks, b)
	sg := []ib.SGE{{Addr: b.mr.Addr(), Length: 4096, LKey: b.mr.LKey()}}
	return l.qp.PostRecv(ib.RecvWR{SGList: sg}, nil)
}

var free []*block

// Close ends the connection, and keeps its blocks for the next one.
func (l *link) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := l.qp.Close(ctx); err != nil {
		return err
	}
	for _, b := range l.blocks {
		free = append(free, b)
	}
	l.blocks = nil
	return nil
}
