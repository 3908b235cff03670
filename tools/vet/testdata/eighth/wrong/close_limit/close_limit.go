// Package close_limit ends connections within a fixed time.
package close_limit

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
	b := bufs.Get().(*block)
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

// shut limits f to five seconds.
func shut(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return f(ctx)
}

// Close ends the connection, and keeps its blocks for the next one.
func (l *link) Close() error {
	defer func() {
		for _, b := range l.blocks {
			bufs.Put(b)
		}
		l.blocks = nil
	}()
	return shut(l.qp.Close) // want "release: .* also if shut has not ended in time"
}
