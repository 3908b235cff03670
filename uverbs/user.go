package uverbs

import (
	"verbena/ib"
	"verbena/internal/gate"
)

// userOps provides the midlayer's calls for user contexts.
var userOps = ib.ForUser(gate.NewKey())

// allocContext announces a context to a driver that implements ib.UserContexter. allocContext may sleep.
// (alloc_ucontext)
func allocContext(d *ib.Device, u *ib.Udata) error {
	if c, ok := ib.As[ib.UserContexter](userOps.Driver(d)); ok {
		return c.AllocUserContext(u)
	}
	return nil
}

// deallocContext ends a context that allocContext has announced. deallocContext may sleep. (dealloc_ucontext)
func deallocContext(d *ib.Device, c ib.UserContext) {
	if u, ok := ib.As[ib.UserContexter](userOps.Driver(d)); ok {
		u.DeallocUserContext(c)
	}
}

// disassociateContext detaches a context from the device. disassociateContext returns false if the driver does not
// support detaching. disassociateContext may sleep. (disassociate_ucontext)
func disassociateContext(d *ib.Device, c ib.UserContext) bool {
	h, ok := ib.As[ib.Disassociator](userOps.Driver(d))
	if ok {
		h.Disassociate(c)
	}
	return ok
}
