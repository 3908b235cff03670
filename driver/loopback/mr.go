package loopback

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// key is what an lkey or rkey stands for: a region or a window. Everything is under Device.mu.
//
//	region:  made --RegMR--> valid --Dereg--> (gone)
//	AllocMR: made --WRRegMR--> valid --LocalInv, SendWithInv--> made
//	window:  made --WRBindMW--> valid --LocalInv, SendWithInv, unbind--> made
type key struct {
	dev    *Device
	num    uint32 // 24 bits of index, 8 of the consumer's choice
	valid  bool
	pd     *pd
	region *umem.Region
	access ib.AccessFlags
	first  uint64 // the range, as the users of the key name it
	n      uint64
	shift  uint64 // from there to the region's addresses
	fast   bool   // made by AllocMR
	bound  int    // windows on this region

	mw *window // nil: a region
	of *key    // the region that the window is bound to
	qp *QP     // the only one whose peers may use it; nil: any
}

// domain is the driver's own side of a protection domain.
func domain(p ib.DriverPD) *pd {
	d, _ := ib.As[*pd](p)
	return d
}

// newKey makes a key that is not valid yet.
//
//verbena:held mu
func (d *Device) newKey(p ib.DriverPD) *key {
	i := freeNumber(d.keys, &d.nextKey, 0)
	k := &key{dev: d, num: i << 8, pd: domain(p)}
	d.keys[i] = k
	return k
}

// key finds what is valid by the number now, nil if nothing is.
//
//verbena:held mu
func (d *Device) key(num uint32) *key {
	if k := d.keys[num>>8]; k != nil && k.valid && k.num == num {
		return k
	}
	return nil
}

// gone reports whether the region or window of the key was destroyed.
//
//verbena:held k.dev.mu
func (k *key) gone() bool { return k.dev.keys[k.num>>8] != k }

func (k *key) contains(addr, n uint64) bool {
	return addr >= k.first && addr-k.first <= k.n && n <= k.n-(addr-k.first)
}

// cover makes the key stand for a whole region.
func (k *key) cover(r *umem.Region, access ib.AccessFlags) {
	k.region, k.access, k.first, k.n, k.valid = r, access, r.IOVA(), r.Len(), true
}

// RegMR implements ib.Driver.
func (d *Device) RegMR(obj ib.MRHandle, p ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR, error) {
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if err := checkLength(r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.newKey(p)
	k.cover(r, access)
	obj.SetKeys(k.num, k.num)
	return k, nil
}

func checkAccess(access ib.AccessFlags) error {
	if access&(ib.AccessOnDemand|ib.AccessFlushPersistent) != 0 {
		return fmt.Errorf("access flags %#x: %w", uint32(access), syscall.EOPNOTSUPP)
	}
	return nil
}

func checkLength(r *umem.Region) error {
	if r.Len() > maxMRSize {
		return fmt.Errorf("%d bytes, at most %d: %w", r.Len(), uint64(maxMRSize), syscall.EINVAL)
	}
	return nil
}

// Rereg implements ib.ReregMR. The keys stay.
func (k *key) Rereg(r *umem.Region, p ib.DriverPD, access ib.AccessFlags, u *ib.Udata) error {
	if err := checkAccess(access); err != nil {
		return err
	}
	k.dev.mu.Lock()
	defer k.dev.mu.Unlock()
	if k.bound > 0 {
		return fmt.Errorf("%d windows are bound to the region: %w", k.bound, syscall.EBUSY)
	}
	if err := checkLength(r); err != nil {
		return err
	}
	k.pd = domain(p)
	k.cover(r, access)
	return nil
}

// Dereg implements ib.DriverMR. Accesses are made under the lock, so none is in flight.
func (k *key) Dereg() error {
	k.dev.mu.Lock()
	defer k.dev.mu.Unlock()
	if k.bound > 0 {
		return fmt.Errorf("%d windows are bound to the region: %w", k.bound, syscall.EBUSY)
	}
	delete(k.dev.keys, k.num>>8)
	return nil
}

// invalidate ends what a work request of q's consumer or peer began.
//
//verbena:held mu
func (d *Device) invalidate(num uint32, q *QP) bool {
	k := d.key(num)
	switch {
	case k == nil || k.pd != q.pd:
		return false
	case k.mw != nil && k.mw.kind == ib.MWType2 && k.qp == q:
		k.unbind()
	case k.fast && k.bound == 0:
		k.valid = false
	default:
		return false
	}
	return true
}
