package ib

import (
	"fmt"
	"syscall"

	"verbena/uapi"
	"verbena/umem"
)

// MRChangeFlags selects the properties that [MR.Rereg] changes. (enum ibv_rereg_mr_flags)
type MRChangeFlags = uapi.ReregMRFlags

const (
	MRChangeTranslation = uapi.ReregMRChangeTranslation // Space, Account, Addr, Length, IOVA
	MRChangePD          = uapi.ReregMRChangePD
	MRChangeAccess      = uapi.ReregMRChangeAccess
)

// MRChange holds the new properties of a region. Fields that the flags do not select are ignored.
type MRChange struct {
	Space        umem.Space
	Account      *umem.Account // may be nil
	Addr, Length uint64
	IOVA         uint64 // 0 means Addr; see MRInit
	PD           *PD
	Access       AccessFlags
}

// ReregMR is implemented by a DriverMR that can change a region of RegMR without deregistration. (rereg_user_mr)
type ReregMR interface {
	DriverMR
	// Rereg sets the memory, the domain and the rights of the region. The three arguments are the new values, even if
	// they are unchanged. Rereg returns when no access with the former properties is in flight. If r differs from the
	// former memory, the midlayer then releases the former memory. The keys may change (MRHandle.SetKeys). Rereg
	// returns EBUSY while a window is bound to the region. After an error the region is unchanged. Rereg may sleep.
	Rereg(r *umem.Region, pd DriverPD, access AccessFlags, u *Udata) error
}

// Rereg changes the memory, the domain or the rights of a region, or several of these. The region exists throughout the
// call. The keys may change. The caller must not use the region concurrently. After an error the region is unchanged.
// Rereg returns EINVAL for invalid flags and for a region of AllocMR. Rereg returns EBUSY while a window is bound to
// the region or another call changes the region, and EOPNOTSUPP if the driver lacks the method. Other errors are those
// of RegMR. Rereg may sleep. (ib_uverbs_rereg_mr, IBA 11.2.8.5)
func (mr *MR) Rereg(flags MRChangeFlags, to MRChange) error {
	defer mr.enterMemoryChange("MR.Rereg").leave()
	if to.IOVA == 0 {
		to.IOVA = to.Addr
	}
	return mr.changeRegionNamingErrors(flags, to, nil)
}

func (mr *MR) changeRegionNamingErrors(flags MRChangeFlags, to MRChange, u *Udata) error {
	if err := mr.changeRegion(flags, to, u); err != nil {
		return fmt.Errorf("reregister memory on %s: %w", mr.dev.name, err)
	}
	return nil
}

func (mr *MR) changeRegion(flags MRChangeFlags, to MRChange, u *Udata) error {
	if err := mr.dev.checkActive(); err != nil {
		return err
	}
	const known = MRChangeTranslation | MRChangePD | MRChangeAccess
	switch {
	case flags == 0 || flags&^known != 0:
		return fmt.Errorf("invalid flags %#x: %w", uint32(flags), syscall.EINVAL)
	case mr.maxPages != 0:
		return fmt.Errorf("the region was created by AllocMR, only work requests can change it: %w", syscall.EINVAL)
	case flags&MRChangePD != 0 && to.PD == nil:
		return fmt.Errorf("no protection domain: %w", syscall.EINVAL)
	}
	drv, ok := As[ReregMR](mr.drv)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	if err := mr.beginRegionChange(); err != nil {
		return err
	}
	defer mr.changing.Store(false)
	region, pd, access := mr.region, mr.pd, mr.access
	if flags&MRChangeAccess != 0 {
		access = to.Access
		if err := checkAccessFlags(access); err != nil {
			return err
		}
	}
	if flags&MRChangeTranslation != 0 {
		init := MRInit{Space: to.Space, Account: to.Account, Addr: to.Addr, Length: to.Length, IOVA: to.IOVA, Access: access}
		var err error
		if region, err = mr.dev.newRegion(init); err != nil {
			return err
		}
	} else if region.OnDemand() != (access&AccessOnDemand != 0) {
		return fmt.Errorf("changing AccessOnDemand requires a change of translation: %w", syscall.EINVAL)
	} else if (access^mr.access)&AccessZeroBased != 0 {
		return fmt.Errorf("changing AccessZeroBased requires a change of translation: %w", syscall.EINVAL)
	} else if access.Writable() && !mr.access.Writable() && !region.OnDemand() {
		if err := region.Check(true); err != nil {
			return err
		}
	}
	if flags&MRChangePD != 0 {
		pd = to.PD
	}
	if err := pd.addUse(mr.dev); err != nil { // the former domain stays referenced until the driver has succeeded
		mr.releaseIfCreated(region)
		return err
	}
	if err := drv.Rereg(region, pd.drv, access, u); err != nil {
		pd.dropUse()
		mr.releaseIfCreated(region)
		return err
	}
	mr.pd.dropUse()
	mr.pd, mr.access = pd, access
	if region != mr.region {
		mr.region.Release()
		mr.region = region
	}
	return nil
}

// releaseIfCreated releases r if Rereg has created r.
func (mr *MR) releaseIfCreated(r *umem.Region) {
	if r != mr.region {
		r.Release()
	}
}

// checkAccessFlags rejects inconsistent access rights. (ib_check_mr_access)
func checkAccessFlags(a AccessFlags) error {
	if a&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && a&AccessLocalWrite == 0 {
		return fmt.Errorf("remote write or atomic access needs local write access: %w", syscall.EINVAL)
	}
	return nil
}
