package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"verbena/internal/sched"
	"verbena/verbs"
)

// localEndpoint holds the queue pairs of one side and their memory, which consists of a send part and a receive part.
type localEndpoint struct {
	dev    *verbs.Device
	p      Params
	path   verbs.Path
	events bool
	pd     *verbs.PD
	cq     *verbs.CQ
	mr     *verbs.MR
	qps    []*verbs.QP
	ah     *verbs.AH // address handle of the peer, for datagrams
	local  []verbs.Endpoint
	peer   []verbs.Endpoint
	memory verbs.Remote // the peer's memory
	wc     []verbs.WC
	room   int // receives per queue pair
}

// Check returns an error if an exchange with these parameters is impossible on the device.
func (l LocalParams) Check(dev *verbs.Device) error {
	e, err := newLocalEndpoint(dev, Params{Type: "rc", Op: Send, Size: 1, QPs: 1}, l, 1, 1)
	if err != nil {
		return err
	}
	return e.close()
}

func (s *session) newEndpoint(dev *verbs.Device, p Params, l LocalParams, sends, room int) (_ *localEndpoint,
	err error) {
	s.end, err = newLocalEndpoint(dev, p, l, sends, room)
	return s.end, err
}

// newLocalEndpoint creates the queue pairs, each with queues for the given numbers of sends and receives. If room is 0,
// the end posts no receives.
func newLocalEndpoint(dev *verbs.Device, p Params, l LocalParams, sends, room int) (_ *localEndpoint, err error) {
	e := &localEndpoint{dev: dev, p: p, events: l.Events, room: room, wc: make([]verbs.WC, 64)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	port, err := dev.QueryPort(l.portOrDefault())
	if err != nil {
		return nil, err
	}
	mtu, err := p.mtuCode()
	if err != nil {
		return nil, err
	}
	switch {
	case max(sends, room) > attr.MaxQPWR:
		return nil, fmt.Errorf("%s: depth %d needs queues of %d work requests, which exceeds %d: lower --depth", dev.Name(),
			p.Depth, max(sends, room), attr.MaxQPWR)
	case p.QPs > attr.MaxQP:
		return nil, fmt.Errorf("%s: qps %d exceeds %d", dev.Name(), p.QPs, attr.MaxQP)
	case p.QPs*(sends+room) > attr.MaxCQE:
		return nil, fmt.Errorf("%s: qps %d of depth %d need a completion queue of %d entries, which exceeds %d: lower --qps or --depth",
			dev.Name(), p.QPs,
			p.Depth, p.QPs*(sends+room), attr.MaxCQE)
	case uint64(p.Size) > uint64(port.MaxMessage):
		return nil, fmt.Errorf("%s: message size %d exceeds %d bytes", dev.Name(), p.Size, port.MaxMessage)
	case p.Type == "ud" && p.Size > port.ActiveMTU.Bytes():
		return nil, fmt.Errorf("%s: datagram size %d exceeds the MTU of %d bytes", dev.Name(), p.Size,
			port.ActiveMTU.Bytes())
	}
	// The receiving side empties a full receive queue within microseconds, so a short RNR timer suffices.
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
	if e.mr, err = e.pd.Alloc(e.recvOffset()+grhSize+p.Size,
		verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(p.QPs*(sends+room), nil); err != nil {
		return nil, err
	}
	for range p.QPs {
		qp, err := e.pd.CreateQP(verbs.QPInit{Type: transportOps[p.Type].t, SendCQ: e.cq, SendWRs: sends, RecvWRs: max(room,
			1)})
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

// recvOffset returns the offset of the receive part in the memory.
func (e *localEndpoint) recvOffset() int { return (e.p.Size + 63) &^ 63 }

// receivedData returns the bytes of the last received message.
func (e *localEndpoint) receivedData() []byte {
	off := e.recvOffset()
	if e.p.Type == "ud" {
		off += grhSize
	}
	return e.mr.Bytes()[off : off+e.p.Size]
}

// remoteMemory returns the memory that the peer accesses: the first part for READ and atomic operations, and the second
// part for WRITE.
func (e *localEndpoint) remoteMemory() verbs.Remote {
	r := verbs.Remote{Addr: e.mr.Addr(), RKey: e.mr.RKey()}
	if e.p.Op == Write {
		r.Addr += uint64(e.recvOffset())
	}
	return r
}

// connect posts receives and connects each queue pair with its counterpart of the peer.
func (e *localEndpoint) connect(peer []verbs.Endpoint, memory verbs.Remote) error {
	if len(peer) != len(e.qps) {
		return fmt.Errorf("%w has %d queue pairs, want %d", ErrPeer, len(peer), len(e.qps))
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
	index, err := e.localGIDIndex()
	if err != nil {
		return err
	}
	e.ah, err = e.pd.CreateAH(verbs.AHAttr{GID: peer[0].GID, SGIDIndex: index, Port: e.path.Port})
	return err
}

// localGIDIndex returns the index of this side's GID.
func (e *localEndpoint) localGIDIndex() (int, error) {
	switch e.path.SGIDIndex {
	case 0:
		g, err := e.dev.DefaultGID(max(e.path.Port, 1))
		return g.Index, err
	case verbs.FirstGID:
		return 0, nil
	}
	return e.path.SGIDIndex, nil
}

// recvIDFlag marks the work request IDs of receives. The low bits of an ID hold the index of the queue pair.
const recvIDFlag = 1 << 32

func (e *localEndpoint) postRecv(qp int) error {
	wr := verbs.RecvWR{ID: recvIDFlag | uint64(qp)}
	if e.p.Op == Send {
		n := e.p.Size
		if e.p.Type == "ud" {
			n += grhSize
		}
		wr.Local = e.mr.SGE(e.recvOffset(), n)
	}
	return e.qps[qp].PostRecv(&wr)
}

// newSendWR returns the work request of a message.
func (e *localEndpoint) newSendWR(qp int, imm bool) verbs.SendWR {
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

// checkDeviceAlive returns an error if the device was reset or removed.
func (e *localEndpoint) checkDeviceAlive() error {
	if _, err := e.dev.Query(); err != nil {
		return fmt.Errorf("%s was reset or removed: %w", e.dev.Name(), err)
	}
	return nil
}

// deviceFailureOf returns the device failure that caused err, or err itself. A reset flushes the work requests before
// the device reports the failure.
func (e *localEndpoint) deviceFailureOf(err error) error {
	wait := time.Duration(0)
	if errors.Is(err, verbs.Flushed) {
		wait = time.Second
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if failure := e.checkDeviceAlive(); failure != nil {
			return failure
		}
		if time.Since(began) >= wait {
			return err
		}
	}
}

// waitCompletions waits for completions and returns them. waitCompletions returns an error for a failed completion, or
// the context's cause if the context ends.
func (e *localEndpoint) waitCompletions(ctx context.Context) ([]verbs.WC, error) {
	if ctx.Err() != nil { // check the context even if completions arrive continuously
		return nil, context.Cause(ctx)
	}
	if e.events {
		n, err := e.cq.Wait(ctx, e.wc)
		if err != nil {
			return nil, err
		}
		return e.checkCompletions(n)
	}
	const often = 256
	for i := 1; ; i++ {
		if wcs, err := e.pollCompletions(); len(wcs) > 0 || err != nil {
			return wcs, err
		}
		if i%often == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		sched.Relax(i)
	}
}

// pollCompletions returns the available completions.
func (e *localEndpoint) pollCompletions() ([]verbs.WC, error) {
	n, err := e.cq.Poll(e.wc)
	if err != nil {
		return nil, err
	}
	return e.checkCompletions(n)
}

func (e *localEndpoint) checkCompletions(n int) ([]verbs.WC, error) {
	for i := range e.wc[:n] {
		if err := verbs.CompletionError(&e.wc[i]); err != nil {
			return nil, err
		}
	}
	return e.wc[:n], nil
}

// patternSize is the period, in bytes, of the byte pattern in a message.
const patternSize = 1 << 16

func makePattern(seed byte) []byte {
	b := make([]byte, patternSize)
	for i := range b {
		b[i] = byte(i*7+i>>8) + seed
	}
	return b
}

// fillPattern writes this side's pattern into the send part.
func (e *localEndpoint) fillPattern(seed byte) {
	b := e.mr.Bytes()[:e.p.Size]
	for n := copy(b, makePattern(seed)); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// checkPattern compares the received message with the peer's pattern.
func (e *localEndpoint) checkPattern(seed byte) error {
	want, got := makePattern(seed), e.receivedData()
	for at := 0; at < len(got); at += len(want) {
		part := got[at:min(at+len(want), len(got))]
		if bytes.Equal(part, want[:len(part)]) {
			continue
		}
		for i := range part {
			if part[i] != want[i] {
				return fmt.Errorf("byte %d of a message of %d bytes: got %#02x, want %#02x", at+i, len(got), part[i], want[i])
			}
		}
	}
	return nil
}

// close destroys all objects in dependency order.
func (e *localEndpoint) close() error {
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
