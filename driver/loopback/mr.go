package loopback

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// memoryKey is the object that an lkey or rkey identifies. The object is a region or a window. All fields are under
// Device.mu.
//
//	region:  made --RegMR--> valid --Dereg--> (gone)
//	AllocMR: made --WRRegMR--> valid --LocalInv, SendWithInv--> made
//	window:  made --WRBindMW--> valid --LocalInv, SendWithInv, unbind--> made
type memoryKey struct {
	dev    *Device
	num    uint32 // 24 bits of index, and 8 bits chosen by the consumer
	valid  bool
	pd     *pd
	region *umem.Region
	access ib.AccessFlags
	first  uint64 // the range, in the addresses that users of the key use
	n      uint64
	shift  uint64 // difference from the region's addresses
	fast   bool   // created by AllocMR
	bound  int    // number of windows bound to this region

	mw *memoryWindow // nil: a region
	of *memoryKey    // the region to which the window is bound
	qp *QP           // the queue pair that peers must use; nil if any may be used
}

// domainOf returns the driver's side of a protection domain.
func domainOf(p ib.DriverPD) *pd {
	d, _ := ib.As[*pd](p)
	return d
}

// newKey creates a key that is not yet valid.
//
//verbena:held mu
func (d *Device) newKey(p ib.DriverPD) *memoryKey {
	i := nextFreeNumber(d.keys, &d.nextKey, 0)
	k := &memoryKey{dev: d, num: i << 8, pd: domainOf(p)}
	d.keys[i] = k
	return k
}

// lookupKey returns the valid key with the given number, or nil.
//
//verbena:held mu
func (d *Device) lookupKey(num uint32) *memoryKey {
	if k := d.keys[num>>8]; k != nil && k.valid && k.num == num {
		return k
	}
	return nil
}

// isDestroyed reports whether the region or window of the key has been destroyed.
//
//verbena:held k.dev.mu
func (k *memoryKey) isDestroyed() bool { return k.dev.keys[k.num>>8] != k }

func (k *memoryKey) containsRange(addr, n uint64) bool {
	return addr >= k.first && addr-k.first <= k.n && n <= k.n-(addr-k.first)
}

// setRegion makes the key valid for a whole region.
func (k *memoryKey) setRegion(r *umem.Region, access ib.AccessFlags) {
	k.region, k.access, k.first, k.n, k.valid = r, access, r.IOVA(), r.Len(), true
}

// RegMR implements ib.Driver.
func (d *Device) RegMR(obj ib.MRHandle, p ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR,
	error) {
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if err := checkRegionLength(r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.newKey(p)
	k.setRegion(r, access)
	obj.SetKeys(k.num, k.num)
	return k, nil
}

func checkAccess(access ib.AccessFlags) error {
	if access&(ib.AccessOnDemand|ib.AccessFlushPersistent) != 0 {
		return fmt.Errorf("unsupported access flags %#x: %w", uint32(access), syscall.EOPNOTSUPP)
	}
	return nil
}

func checkRegionLength(r *umem.Region) error {
	if r.Len() > maxMRSize {
		return fmt.Errorf("%d bytes exceed %d: %w", r.Len(), uint64(maxMRSize), syscall.EINVAL)
	}
	return nil
}

// Rereg implements ib.ReregMR. The keys do not change.
func (k *memoryKey) Rereg(r *umem.Region, p ib.DriverPD, access ib.AccessFlags, u *ib.Udata) error {
	if err := checkAccess(access); err != nil {
		return err
	}
	k.dev.mu.Lock()
	defer k.dev.mu.Unlock()
	if k.bound > 0 {
		return fmt.Errorf("%d windows are bound to the region: %w", k.bound, syscall.EBUSY)
	}
	if err := checkRegionLength(r); err != nil {
		return err
	}
	k.pd = domainOf(p)
	k.setRegion(r, access)
	return nil
}

// Dereg implements ib.DriverMR. Accesses hold the lock. Therefore no access is in flight.
func (k *memoryKey) Dereg() error {
	k.dev.mu.Lock()
	defer k.dev.mu.Unlock()
	if k.bound > 0 {
		return fmt.Errorf("%d windows are bound to the region: %w", k.bound, syscall.EBUSY)
	}
	delete(k.dev.keys, k.num>>8)
	return nil
}

// invalidateKey invalidates a key for a work request of q's consumer or peer.
//
//verbena:held mu
func (d *Device) invalidateKey(num uint32, q *QP) bool {
	if !d.mayInvalidateKey(num, q) {
		return false
	}
	if k := d.lookupKey(num); k.mw != nil {
		k.unbindWindow()
	} else {
		k.valid = false
	}
	return true
}

// mayInvalidateKey reports whether a work request of q may invalidate the key.
//
//verbena:held d.mu
func (d *Device) mayInvalidateKey(num uint32, q *QP) bool {
	k := d.lookupKey(num)
	switch {
	case k == nil || k.pd != q.pd:
		return false
	case k.mw != nil && k.mw.kind == ib.MWType2 && k.qp == q:
		return true
	}
	return k.fast && k.bound == 0
}
