package ibtest

import (
	"errors"
	"syscall"

	"verbena/ib"
)

// traffic is signaled messages from side 0 of a pair to side 1, for checks that do not care of which kind they are: RDMA
// WRITEs, or SENDs if the driver has no RDMA WRITE. A SEND needs a receive, whose completions are on the queue of side 1.
type traffic struct {
	*pair
	write bool
}

// lacks reports whether an error says that the driver lacks an ability.
func lacks(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)
}

// traffic finds out what the driver has.
func (p *pair) traffic() *traffic {
	p.e.Helper()
	write := p.tried("RDMA WRITE", 0, p.rdma(0, ib.WRRDMAWrite, nil, 0))
	if write {
		p.e.waitOne(p.cqs[0], 0, ib.WCSuccess)
	}
	return &traffic{p, write}
}

// message is a message of n bytes from the beginning of one buffer to that of the other.
func (t *traffic) message(id uint64, n int) ib.SendWR {
	if t.write {
		return t.rdma(id, ib.WRRDMAWrite, t.buf[0].sgl(0, n), 0)
	}
	return ib.SendWR{ID: id, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: t.buf[0].sgl(0, n)}
}

// ready makes side 1 ready for a message of n bytes.
func (t *traffic) ready(id uint64, n int) {
	t.e.Helper()
	if !t.write {
		t.recv(1, id, 0, n)
	}
}

// arrived waits until side 1 is done with a message, as far as it has a completion.
func (t *traffic) arrived(id uint64) {
	t.e.Helper()
	if !t.write {
		t.e.waitOne(t.cqs[1], id, ib.WCSuccess)
	}
}

// deliver sends a message, whose completion stays on the queue of side 0.
func (t *traffic) deliver(id uint64, n int) {
	t.e.Helper()
	t.ready(id, n)
	t.post(0, t.message(id, n))
	t.arrived(id)
}

// tried is post, and reports false when the driver does not know the operation.
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
