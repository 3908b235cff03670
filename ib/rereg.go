package ib

import (
	"fmt"
	"syscall"

	"verbena/uapi"
	"verbena/umem"
)

// MRChangeFlags say what [MR.Rereg] changes. (enum ibv_rereg_mr_flags)
type MRChangeFlags = uapi.ReregMRFlags

const (
	MRChangeTranslation = uapi.ReregMRChangeTranslation // Space, Account, Addr, Length, IOVA
	MRChangePD          = uapi.ReregMRChangePD
	MRChangeAccess      = uapi.ReregMRChangeAccess
)

// MRChange is what a region is to become; only what the flags name is looked at.
type MRChange struct {
	Space        umem.Space
	Account      *umem.Account // may be nil
	Addr, Length uint64
	IOVA         uint64 // 0: the same as Addr; see MRInit
	PD           *PD
	Access       AccessFlags
}

// ReregMR is implemented by a DriverMR, made by RegMR, that can be changed without being deregistered. (rereg_user_mr)
type ReregMR interface {
	DriverMR
	// Rereg makes the region one of r, in domain pd, with the given rights, from now on: all three as they are to be,
	// also what stays as it was. It returns when no access with the former rights is in flight, and then the midlayer
	// releases the memory that it was of, if r is other memory. The keys may change (MRHandle.SetKeys). EBUSY while a
	// window is bound to the region. After an error the region is what it was. It may sleep.
	Rereg(r *umem.Region, pd DriverPD, access AccessFlags, u *Udata) error
}

// Rereg changes the memory that a region stands for, its domain, its rights, or several of these, without an instant in
// which it does not exist. The keys may be others afterwards. The caller sees to it that nothing else is done with the
// region at the same time. After an error the region is what it was: EINVAL for flags that make no sense, and for a
// region of AllocMR; EBUSY while a window is bound to the region or it is being changed; EOPNOTSUPP from a driver without; otherwise as RegMR.
// It may sleep. (ib_uverbs_rereg_mr, IBA 11.2.8.5)
func (mr *MR) Rereg(flags MRChangeFlags, to MRChange) error {
	defer mr.changes("MR.Rereg").leave()
	if to.IOVA == 0 {
		to.IOVA = to.Addr
	}
	return mr.reregister(flags, to, nil)
}

func (mr *MR) reregister(flags MRChangeFlags, to MRChange, u *Udata) error {
	if err := mr.rereg(flags, to, u); err != nil {
		return fmt.Errorf("reregister memory on %s: %w", mr.dev.name, err)
	}
	return nil
}

func (mr *MR) rereg(flags MRChangeFlags, to MRChange, u *Udata) error {
	if err := mr.dev.usable(); err != nil {
		return err
	}
	const known = MRChangeTranslation | MRChangePD | MRChangeAccess
	switch {
	case flags == 0 || flags&^known != 0:
		return fmt.Errorf("changes %#x: %w", uint32(flags), syscall.EINVAL)
	case mr.maxPages != 0:
		return fmt.Errorf("the region is one for work requests to register: %w", syscall.EINVAL)
	case flags&MRChangePD != 0 && to.PD == nil:
		return fmt.Errorf("no protection domain: %w", syscall.EINVAL)
	}
	drv, ok := As[ReregMR](mr.drv)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	if err := mr.beginChange(); err != nil {
		return err
	}
	defer mr.changing.Store(false)
	region, pd, access := mr.region, mr.pd, mr.access
	if flags&MRChangeAccess != 0 {
		access = to.Access
		if err := checkAccess(access); err != nil {
			return err
		}
	}
	if flags&MRChangeTranslation != 0 {
		init := MRInit{Space: to.Space, Account: to.Account, Addr: to.Addr, Length: to.Length, IOVA: to.IOVA, Access: access}
		var err error
		if region, err = mr.dev.region(init); err != nil {
			return err
		}
	} else if region.OnDemand() != (access&AccessOnDemand != 0) {
		return fmt.Errorf("paging on demand begins and ends with a change of translation: %w", syscall.EINVAL)
	} else if (access^mr.access)&AccessZeroBased != 0 {
		return fmt.Errorf("addresses from zero begin and end with a change of translation: %w", syscall.EINVAL)
	} else if access.Writable() && !mr.access.Writable() && !region.OnDemand() {
		if err := region.Check(true); err != nil {
			return err
		}
	}
	if flags&MRChangePD != 0 {
		pd = to.PD
	}
	if err := pd.get(mr.dev); err != nil { // the former one is held until all is well
		mr.forget(region)
		return err
	}
	if err := drv.Rereg(region, pd.drv, access, u); err != nil {
		pd.put()
		mr.forget(region)
		return err
	}
	mr.pd.put()
	mr.pd, mr.access = pd, access
	if region != mr.region {
		mr.region.Release()
		mr.region = region
	}
	return nil
}

// forget releases what Rereg got, if it got something.
func (mr *MR) forget(r *umem.Region) {
	if r != mr.region {
		r.Release()
	}
}

// checkAccess refuses rights that make no sense. (ib_check_mr_access)
func checkAccess(a AccessFlags) error {
	if a&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && a&AccessLocalWrite == 0 {
		return fmt.Errorf("remote write or atomic access needs local write access: %w", syscall.EINVAL)
	}
	return nil
}
