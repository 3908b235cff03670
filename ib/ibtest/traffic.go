package ibtest

import (
	"errors"
	"sync"
	"syscall"

	"verbena/ib"
)

// traffic sends signaled messages from side 0 of a pair to side 1, for checks that accept any kind of message: RDMA
// WRITEs, or SENDs if the driver has no RDMA WRITE. A SEND needs a receive, whose completion is put in the queue of
// side 1.
type traffic struct {
	*pair
	write bool
}

// lacks reports whether an error means that the driver lacks a feature.
func lacks(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)
}

// ability is an operation of queue pairs of a type.
type ability struct {
	kind ib.QPType
	op   ib.WROpcode
}

// abilities holds the operations that were tried.
type abilities struct {
	sync.Mutex
	known map[ability]bool
}

// able reports whether the driver supports an operation. It tries the operation once, on queue pairs of its own.
func (e *env) able(kind ib.QPType, op ib.WROpcode) bool {
	e.Helper()
	e.cfg.abilities.Lock()
	able, ok := e.cfg.abilities.known[ability{kind, op}]
	e.cfg.abilities.Unlock()
	if ok {
		return able
	}
	p := e.pair(pairConfig{kind: kind})
	switch op { // the operations of pair.operations
	case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead, ib.WRAtomicFetchAdd,
		ib.WRAtomicCmpAndSwp, ib.WRAtomicWrite:
	default:
		able = true
	}
	for _, o := range p.operations() {
		if o.wr.Opcode != op {
			continue
		}
		if o.receives {
			p.recv(1, 1, 0, bufLen)
		}
		if able = p.tried(o.what, 0, o.wr); able {
			e.waitOne(p.cqs[0], 1, ib.WCSuccess)
		} else {
			e.Logf("the driver has no %s", o.what)
		}
	}
	e.cfg.abilities.Lock()
	defer e.cfg.abilities.Unlock()
	e.cfg.abilities.known[ability{kind, op}] = able
	return able
}

// unable reports whether a post failed because the driver lacks the operation.
func (p *pair) unable(op ib.WROpcode, err error) bool {
	p.e.Helper()
	return lacks(err) && !p.e.able(p.qps[0].Type(), op)
}

// traffic selects the kind of message that the driver supports.
func (p *pair) traffic() *traffic {
	p.e.Helper()
	write := p.tried("RDMA WRITE", 0, p.rdma(0, ib.WRRDMAWrite, nil, 0))
	if write {
		p.e.waitOne(p.cqs[0], 0, ib.WCSuccess)
	}
	return &traffic{p, write}
}

// message returns a message of n bytes from the start of one buffer to the start of the other.
func (t *traffic) message(id uint64, n int) ib.SendWR {
	if t.write {
		return t.rdma(id, ib.WRRDMAWrite, t.buf[0].sgl(0, n), 0)
	}
	return ib.SendWR{ID: id, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: t.buf[0].sgl(0, n)}
}

// ready prepares side 1 for a message of n bytes.
func (t *traffic) ready(id uint64, n int) {
	t.e.Helper()
	if !t.write {
		t.recv(1, id, 0, n)
	}
}

// arrived waits for the completion of a message on side 1, if it has one.
func (t *traffic) arrived(id uint64) {
	t.e.Helper()
	if !t.write {
		t.e.waitOne(t.cqs[1], id, ib.WCSuccess)
	}
}

// deliver sends a message and leaves its completion in the queue of side 0.
func (t *traffic) deliver(id uint64, n int) {
	t.e.Helper()
	t.ready(id, n)
	t.post(0, t.message(id, n))
	t.arrived(id)
}

// tried is post, but returns false if the driver does not support the operation.
func (p *pair) tried(ability string, side int, wr ib.SendWR) bool {
	p.e.Helper()
	n, err := p.qps[side].PostSend(wr)
	if lacks(err) {
		return false
	}
	if n != 1 || err != nil {
		p.e.Fatalf("post %s: %d taken, %v", ability, n, err)
	}
	return true
}
