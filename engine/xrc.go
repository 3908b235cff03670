package engine

import (
	"sync/atomic"

	"verbena/engine/transport"
	"verbena/ib"
)

// An extended reliable connection (XRC, IBA annex A14) is a reliable connection. Each of its requests has an extra
// header with the number of the destination's shared receive queue:
//
//	initiator  a send queue; the initiator receives only responses
//	target     no queues at all: receives, completion queue and protection domain are those of the named queue, which
//	           must be of the target's XRC domain
//
// Everything else is the same as for RC.

// xrcd is an XRC domain. Apart from programs, only its identity matters.
type xrcd struct {
	dev      *Device
	programs atomic.Bool // a program has created a queue in the domain: targets may copy to the program's memory
}

// AllocXRCD implements ib.XRCDriver.
func (o ops) AllocXRCD(*ib.Udata) (ib.DriverXRCD, error) { return &xrcd{dev: o.dev}, nil }

// Dealloc implements ib.DriverXRCD.
func (*xrcd) Dealloc() error { return nil }

// hasReceiveQueue reports whether the queue pair has a receive queue of its own.
func hasReceiveQueue(qp *QP) bool {
	return qp.srq == nil && qp.typ != ib.QPTypeXRCInit && qp.typ != ib.QPTypeXRCTgt
}

// srq returns the shared receive queue with a number, or nil.
func (d *Device) srq(num uint32) *srq {
	if s := d.srqs.get(num & (maxQPSlot - 1)); s != nil && s.num == num {
		return s
	}
	return nil
}

// nameQueue looks up the queue that a request to a target names. All packets of a message must name the same queue.
// nameQueue reports whether the target may take receives from the queue.
func (r *responder) nameQueue(k *packet) bool {
	qp := r.qp
	s := qp.dev.srq(k.XRCETH().SRQN())
	if s == nil || s.xrcd == nil || s.xrcd != qp.xrcd || r.rcv.Within() != transport.None && s != r.named {
		return false
	}
	r.named = s
	return true
}
