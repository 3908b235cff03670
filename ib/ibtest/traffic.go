package ibtest

import (
	"errors"
	"sync"
	"syscall"

	"verbena/ib"
)

// messageSender sends signaled messages from side 0 of a pair to side 1, for checks that accept any kind of message:
// RDMA WRITEs, or SENDs if the driver has no RDMA WRITE. A SEND needs a receive, whose completion is put in the queue
// of side 1.
type messageSender struct {
	*pair
	write bool
}

// isUnsupportedError reports whether an error means that the driver lacks a feature.
func isUnsupportedError(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)
}

// qpTypeOperation is an operation of queue pairs of a type.
type qpTypeOperation struct {
	kind ib.QPType
	op   ib.WROpcode
}

// triedOperations holds the operations that were tried.
type triedOperations struct {
	sync.Mutex
	known map[qpTypeOperation]bool
}

// supportsOperation reports whether the driver supports an operation. It tries the operation once, on queue pairs of
// its own.
func (e *testEnv) supportsOperation(kind ib.QPType, op ib.WROpcode) bool {
	e.Helper()
	e.cfg.abilities.Lock()
	able, ok := e.cfg.abilities.known[qpTypeOperation{kind, op}]
	e.cfg.abilities.Unlock()
	if ok {
		return able
	}
	p := e.newPair(pairConfig{kind: kind})
	switch op { // the operations of pair.operations
	case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead, ib.WRAtomicFetchAdd,
		ib.WRAtomicCmpAndSwp, ib.WRAtomicWrite:
	default:
		able = true
	}
	for _, o := range p.operationsOfType() {
		if o.wr.Opcode != op {
			continue
		}
		if o.receives {
			p.postRecv(1, 1, 0, pairBufferLen)
		}
		if able = p.postIfSupported(o.what, 0, o.wr); able {
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
		} else {
			e.Logf("the driver has no %s", o.what)
		}
	}
	e.cfg.abilities.Lock()
	defer e.cfg.abilities.Unlock()
	e.cfg.abilities.known[qpTypeOperation{kind, op}] = able
	return able
}

// isUnsupportedPost reports whether a post failed because the driver lacks the operation.
func (p *pair) isUnsupportedPost(op ib.WROpcode, err error) bool {
	p.e.Helper()
	return isUnsupportedError(err) && !p.e.supportsOperation(p.qps[0].Type(), op)
}

// newMessageSender returns a sender that uses RDMA WRITE if the driver supports it, and SEND otherwise.
func (p *pair) newMessageSender() *messageSender {
	p.e.Helper()
	write := p.postIfSupported("RDMA WRITE", 0, p.newRDMARequest(0, ib.WRRDMAWrite, nil, 0))
	if write {
		p.e.waitOneCompletion(p.cqs[0], 0, ib.WCSuccess)
	}
	return &messageSender{p, write}
}

// newMessageRequest returns a message of n bytes from the start of one buffer to the start of the other.
func (t *messageSender) newMessageRequest(id uint64, n int) ib.SendWR {
	if t.write {
		return t.newRDMARequest(id, ib.WRRDMAWrite, t.buf[0].newSGL(0, n), 0)
	}
	return ib.SendWR{ID: id, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: t.buf[0].newSGL(0, n)}
}

// prepareReceive prepares side 1 for a message of n bytes.
func (t *messageSender) prepareReceive(id uint64, n int) {
	t.e.Helper()
	if !t.write {
		t.postRecv(1, id, 0, n)
	}
}

// waitMessageArrived waits for the completion of a message on side 1, if it has one.
func (t *messageSender) waitMessageArrived(id uint64) {
	t.e.Helper()
	if !t.write {
		t.e.waitOneCompletion(t.cqs[1], id, ib.WCSuccess)
	}
}

// deliverMessage sends a message and leaves its completion in the queue of side 0.
func (t *messageSender) deliverMessage(id uint64, n int) {
	t.e.Helper()
	t.prepareReceive(id, n)
	t.postSendWR(0, t.newMessageRequest(id, n))
	t.waitMessageArrived(id)
}

// postIfSupported is post, but returns false if the driver does not support the operation.
func (p *pair) postIfSupported(ability string, side int, wr ib.SendWR) bool {
	p.e.Helper()
	return p.postListIfSupported(ability, side, wr)
}

// postListIfSupported posts a list of requests in one call. It returns false if the driver does not support the last
// one.
func (p *pair) postListIfSupported(ability string, side int, list ...ib.SendWR) bool {
	p.e.Helper()
	n, err := p.qps[side].PostSend(list...)
	if isUnsupportedError(err) && n == len(list)-1 {
		return false
	}
	if n != len(list) || err != nil {
		p.e.Fatalf("post %s: %d taken, %v", ability, n, err)
	}
	return true
}
