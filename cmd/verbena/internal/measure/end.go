package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"verbena/verbs"
)

// end is the queue pairs of one side, with their memory: a part to send from, and one to receive into.
type end struct {
	dev    *verbs.Device
	p      Params
	path   verbs.Path
	events bool
	pd     *verbs.PD
	cq     *verbs.CQ
	mr     *verbs.MR
	qps    []*verbs.QP
	ah     *verbs.AH // to the peer, for datagrams
	local  []verbs.Endpoint
	peer   []verbs.Endpoint
	memory verbs.Remote // of the peer
	wc     []verbs.WC
	room   int // receives of a queue pair
}

// newEnd makes the queue pairs. room is for how many receives each has room; 0: it receives nothing.
func newEnd(dev *verbs.Device, p Params, l Local, room int) (_ *end, err error) {
	e := &end{dev: dev, p: p, events: l.Events, room: room, wc: make([]verbs.WC, 64)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	port, err := dev.QueryPort(l.portOr1())
	if err != nil {
		return nil, err
	}
	mtu, err := p.mtu()
	if err != nil {
		return nil, err
	}
	switch {
	case p.Depth > attr.MaxQPWR || room > attr.MaxQPWR:
		return nil, fmt.Errorf("%s: depth %d exceeds the %d work requests of a queue", dev.Name(), max(p.Depth, room), attr.MaxQPWR)
	case uint64(p.Size) > uint64(port.MaxMessage):
		return nil, fmt.Errorf("%s: size %d exceeds the %d bytes of a message", dev.Name(), p.Size, port.MaxMessage)
	case p.Type == "ud" && p.Size > port.ActiveMTU.Bytes():
		return nil, fmt.Errorf("%s: size %d exceeds the MTU of %d bytes, which bounds a datagram", dev.Name(), p.Size, port.ActiveMTU.Bytes())
	}
	// An RNR NAK is answered soon: a full receive queue is emptied within microseconds.
	e.path = verbs.Path{Port: l.Port, MTU: mtu, SGIDIndex: l.GIDIndex, RNRTimer: 10 * time.Microsecond}
	switch l.GIDIndex {
	case -1:
		e.path.SGIDIndex = 0
	case 0:
		e.path.SGIDIndex = verbs.FirstGID
	}
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.Alloc(e.recvOffset()+grhSize+p.Size, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(p.QPs*(p.Depth+room), nil); err != nil {
		return nil, err
	}
	for range p.QPs {
		qp, err := e.pd.CreateQP(verbs.QPInit{Type: types[p.Type].t, SendCQ: e.cq, SendWRs: p.Depth, RecvWRs: max(room, 1)})
		if err != nil {
			return nil, err
		}
		e.qps = append(e.qps, qp)
		at, err := qp.LocalVia(e.path)
		if err != nil {
			return nil, err
		}
		e.local = append(e.local, at)
	}
	return e, nil
}

// recvOffset is where messages are received.
func (e *end) recvOffset() int { return (e.p.Size + 63) &^ 63 }

// received is where the last message is.
func (e *end) received() []byte {
	off := e.recvOffset()
	if e.p.Type == "ud" {
		off += grhSize
	}
	return e.mr.Bytes()[off : off+e.p.Size]
}

// remote is the memory for the peer. READ and atomic operations take it from the first part, WRITE from the second.
func (e *end) remote() verbs.Remote {
	r := verbs.Remote{Addr: e.mr.Addr(), RKey: e.mr.RKey()}
	if e.p.Op == Write {
		r.Addr += uint64(e.recvOffset())
	}
	return r
}

// connect posts receives and connects the queue pairs with those of the peer, one by one.
func (e *end) connect(peer []verbs.Endpoint, memory verbs.Remote) error {
	if len(peer) != len(e.qps) {
		return fmt.Errorf("the other side has %d queue pairs, want %d", len(peer), len(e.qps))
	}
	e.peer, e.memory = peer, memory
	for i, qp := range e.qps {
		if err := qp.Prepare(e.path); err != nil {
			return err
		}
		for range e.room {
			if err := e.postRecv(i); err != nil {
				return err
			}
		}
		if e.p.Type != "ud" {
			if err := qp.ConnectVia(peer[i], e.path); err != nil {
				return err
			}
			continue
		}
		if err := qp.Activate(e.path); err != nil {
			return err
		}
	}
	if e.p.Type != "ud" {
		return nil
	}
	index, err := e.gidIndex()
	if err != nil {
		return err
	}
	e.ah, err = e.pd.CreateAH(verbs.AHAttr{GID: peer[0].GID, SGIDIndex: index, Port: e.path.Port})
	return err
}

// gidIndex is that of this side's address.
func (e *end) gidIndex() (int, error) {
	switch e.path.SGIDIndex {
	case 0:
		g, err := e.dev.DefaultGID(max(e.path.Port, 1))
		return g.Index, err
	case verbs.FirstGID:
		return 0, nil
	}
	return e.path.SGIDIndex, nil
}

// recvID marks the completions of receives; the low bits of every ID are the queue pair's place.
const recvID = 1 << 32

func (e *end) postRecv(qp int) error {
	wr := verbs.RecvWR{ID: recvID | uint64(qp)}
	if e.p.Op == Send {
		n := e.p.Size
		if e.p.Type == "ud" {
			n += grhSize
		}
		wr.Local = e.mr.SGE(e.recvOffset(), n)
	}
	return e.qps[qp].PostRecv(&wr)
}

// request is the work request of a message.
func (e *end) request(qp int, imm bool) verbs.SendWR {
	wr := verbs.SendWR{ID: uint64(qp), Flags: verbs.Signaled, Local: e.mr.SGE(0, e.p.Size), Remote: e.memory}
	switch e.p.Op {
	case Send:
		wr.Opcode = verbs.Send
		if e.ah != nil {
			wr.To = verbs.Datagram{AH: e.ah, QPN: e.peer[qp].QPN, QKey: e.peer[qp].QKey}
		}
	case Write:
		wr.Opcode = verbs.Write
		if imm {
			wr.Opcode = verbs.WriteWithImm
		}
	case Read, Atomic:
		wr.Opcode = verbs.Read
		if e.p.Op == Atomic {
			wr.Opcode, wr.CompareAdd = verbs.FetchAdd, 1
		}
		wr.Local = e.mr.SGE(e.recvOffset(), e.p.Size)
	}
	return wr
}

// next waits for completions, and returns them. All have succeeded.
func (e *end) next(ctx context.Context) ([]verbs.WC, error) {
	n, err := e.poll(ctx)
	if err != nil {
		return nil, err
	}
	for i := range e.wc[:n] {
		if err := verbs.CompletionError(&e.wc[i]); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = errors.Join(cause, err)
			}
			return nil, err
		}
	}
	return e.wc[:n], nil
}

func (e *end) poll(ctx context.Context) (int, error) {
	if e.events {
		return e.cq.Wait(ctx, e.wc)
	}
	const often = 256
	for i := 1; ; i++ {
		n, err := e.cq.Poll(e.wc)
		if n > 0 || err != nil {
			return n, err
		}
		if i%often == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		runtime.Gosched()
	}
}

// fill writes what this side sends; check compares what was received with what the other side has sent.
func (e *end) fill(seed byte) {
	for i := range e.mr.Bytes()[:e.p.Size] {
		e.mr.Bytes()[i] = pattern(i, seed)
	}
}

func pattern(i int, seed byte) byte { return byte(i*7+i>>8) + seed }

func (e *end) check(seed byte) error {
	for i, got := range e.received() {
		if want := pattern(i, seed); got != want {
			return fmt.Errorf("byte %d of a message arrived as %#02x, want %#02x", i, got, want)
		}
	}
	return nil
}

// close ends everything, in order.
func (e *end) close() error {
	var errs []error
	shut := func(c io.Closer) { errs = append(errs, c.Close()) }
	for _, qp := range e.qps {
		shut(qp)
	}
	if e.ah != nil {
		shut(e.ah)
	}
	if e.cq != nil {
		shut(e.cq)
	}
	if e.mr != nil {
		shut(e.mr)
	}
	if e.pd != nil {
		shut(e.pd)
	}
	return errors.Join(errs...)
}
