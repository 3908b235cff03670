package engine

import (
	"sync/atomic"

	"verbena/engine/transport"
	"verbena/ib"
)

// Extended reliable connections (IBA annex A14) are reliable ones whose requests name, in a header of their own, the
// shared receive queue that they are for:
//
//	initiator  a send queue; responses only come in
//	target     no queues at all: receives, completion queue and protection domain are those of the named queue, which
//	           must be of the target's XRC domain
//
// All else is as with RC.

// xrcd is an XRC domain. Its identity is nearly all that matters.
type xrcd struct {
	dev      *Device
	programs atomic.Bool // a program has made a queue in it, to whose memory targets may copy
}

// AllocXRCD implements ib.XRCDriver.
func (o ops) AllocXRCD(*ib.Udata) (ib.DriverXRCD, error) { return &xrcd{dev: o.dev}, nil }

// Dealloc implements ib.DriverXRCD.
func (*xrcd) Dealloc() error { return nil }

// hasReceiveQueue reports whether the queue pair has a receive queue of its own.
func hasReceiveQueue(qp *QP) bool {
	return qp.srq == nil && qp.typ != ib.QPTypeXRCInit && qp.typ != ib.QPTypeXRCTgt
}

// srq finds a shared receive queue by its number.
func (d *Device) srq(num uint32) *srq {
	if s := d.srqs.get(num & (maxQPSlot - 1)); s != nil && s.num == num {
		return s
	}
	return nil
}

// nameQueue finds the queue that a request to a target names, the same throughout a message. It reports whether the
// target may take receives from there.
func (r *responder) nameQueue(k *packet) bool {
	qp := r.qp
	s := qp.dev.srq(k.XRCETH().SRQN())
	if s == nil || s.xrcd == nil || s.xrcd != qp.xrcd || r.rcv.Within() != transport.None && s != r.named {
		return false
	}
	r.named = s
	return true
}
