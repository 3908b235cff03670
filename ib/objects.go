package ib

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/internal/states"
	"verbena/umem"
)

// PD is a protection domain. Memory and queue pairs can be used together only within one domain. (struct ib_pd)
type PD struct {
	object
	drv DriverPD
}

// AllocPD creates a protection domain. AllocPD may sleep. (ib_alloc_pd)
func (d *Device) AllocPD() (*PD, error) {
	defer d.enterSleeping("Device.AllocPD").leave()
	return d.allocPD(nil)
}

// allocPD implements AllocPD for all callers, including user contexts. In allocPD and the following functions u is nil
// for a consumer in this process.
func (d *Device) allocPD(u *Udata) (*PD, error) {
	if err := d.beginCreate(); err != nil {
		return nil, fmt.Errorf("alloc pd on %s: %w", d.name, err)
	}
	defer d.endCreate()
	pd := &PD{}
	pd.initObject(d, kindPD, pd, nil)
	drv, err := d.drv.AllocPD(u)
	if err != nil {
		return nil, fmt.Errorf("alloc pd on %s: %w", d.name, err)
	}
	pd.drv = drv
	if err := pd.finishCreate(pd.drv.Dealloc); err != nil {
		return nil, fmt.Errorf("alloc pd on %s: %w", d.name, err)
	}
	return pd, nil
}

// Dealloc frees the domain. Dealloc returns EBUSY while other objects use the domain. Dealloc may sleep.
// (ib_dealloc_pd)
func (pd *PD) Dealloc() error { return pd.destroyInContext(context.Background()) }

// DeallocContext is Dealloc with a limit for the wait. When ctx ends, deallocation continues. The domain then rejects
// all calls except another Dealloc, which joins the deallocation. DeallocContext may sleep.
func (pd *PD) DeallocContext(ctx context.Context) error { return pd.destroyInContext(ctx) }

func (pd *PD) destroyInContext(ctx context.Context) error {
	err := pd.destroyObject(ctx, "PD.Dealloc", pd.drv.Dealloc, func() {})
	if err != nil {
		return fmt.Errorf("dealloc pd on %s: %w", pd.dev.name, err)
	}
	return nil
}

// MR is a memory region. (struct ib_mr)
type MR struct {
	object
	drv        DriverMR
	pd         *PD
	region     *umem.Region
	access     AccessFlags
	lkey, rkey atomic.Uint32 // a Rereg may change them while other threads post
	driverKey  atomic.Uint32 // the local key that the driver has set; see QPHandle.LKey

	maxPages int         // argument of AllocMR
	changing atomic.Bool // a Map, Rereg or Dereg is in progress
}

// MRInit describes the memory of a new region: Length bytes at Addr of Space.
type MRInit struct {
	Space        umem.Space
	Account      *umem.Account // the account that is charged for the pages; may be nil
	Addr, Length uint64
	// IOVA is the address of the first byte in work requests; 0 means Addr. With AccessZeroBased the address of the
	// first byte is always 0.
	IOVA   uint64
	Access AccessFlags
}

// RegMR registers memory. RegMR returns EFAULT if the memory is not mapped with the rights that Access implies, and
// ENOMEM if the account's limit is exceeded. RegMR returns EINVAL for inconsistent rights (remote write or atomics
// without local write). With AccessOnDemand no pages are charged, and the memory is mapped on access. In this case,
// Addr 0 with Length umem.Everything registers all memory. RegMR returns EOPNOTSUPP or EINVAL if the device lacks
// on-demand paging (DeviceAttr.ODP). RegMR may sleep. (ib_reg_user_mr)
func (pd *PD) RegMR(init MRInit) (*MR, error) {
	defer pd.enterSleeping("PD.RegMR").leave()
	if init.IOVA == 0 {
		init.IOVA = init.Addr
	}
	return pd.regMR(init, nil)
}

// RegBytes registers b, a slice of memory of this process. The region references b until deregistration. [MR.Addr]
// returns the address of b. For atomics the address of b must be a multiple of 8. make ensures this for slices of 8
// bytes or more. The errors are those of RegMR. RegBytes may sleep.
func (pd *PD) RegBytes(b []byte, access AccessFlags) (*MR, error) {
	defer pd.enterSleeping("PD.RegBytes").leave()
	space := umem.NewLocal()
	addr, err := space.Add(b)
	if err != nil {
		return nil, fmt.Errorf("register memory on %s: %w", pd.dev.name, err)
	}
	return pd.regMR(MRInit{Space: space, Addr: addr, Length: uint64(len(b)), IOVA: addr, Access: access}, nil)
}

// regMR does not replace init.IOVA 0 by Addr, because a program may register a region at address 0.
func (pd *PD) regMR(init MRInit, u *Udata) (*MR, error) {
	d := pd.dev
	fail := func(err error) (*MR, error) { return nil, fmt.Errorf("register memory on %s: %w", d.name, err) }
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	if err := checkAccessFlags(init.Access); err != nil {
		return fail(err)
	}
	if err := pd.addUse(d); err != nil {
		return fail(err)
	}
	region, err := d.newRegion(init)
	if err != nil {
		pd.dropUse()
		return fail(err)
	}
	mr := &MR{pd: pd, region: region, access: init.Access}
	mr.initObject(d, kindMR, mr, &pd.object)
	if mr.drv, err = d.drv.RegMR(MRHandle{mr: mr}, pd.drv, region, init.Access, u); err != nil {
		region.Release()
		pd.dropUse()
		return fail(err)
	}
	if err := mr.finishCreate(mr.drv.Dereg); err != nil {
		region.Release()
		pd.dropUse()
		return fail(err)
	}
	return mr, nil
}

// newRegion creates the memory of a registration. (ib_umem_get, ib_umem_odp_get)
func (d *Device) newRegion(init MRInit) (*umem.Region, error) {
	if init.Access&AccessZeroBased != 0 {
		init.IOVA = 0
	}
	if init.Access&AccessOnDemand == 0 {
		return umem.Get(init.Space, init.Account, init.Addr, init.Length, init.IOVA, init.Access.Writable())
	}
	attr, err := d.drv.QueryDevice()
	switch {
	case err != nil:
		return nil, err
	case attr.ODP.General&ODPSupport == 0:
		return nil, fmt.Errorf("on-demand paging: %w", syscall.EOPNOTSUPP)
	case init.Addr == 0 && init.Length == umem.ImplicitLength && attr.ODP.General&ODPImplicit == 0:
		return nil, fmt.Errorf("on-demand paging of all memory: %w", syscall.EINVAL)
	}
	return umem.OnDemand(init.Space, init.Addr, init.Length, init.IOVA)
}

// AdviseMR announces the use of memory registered on demand. The elements of sgl name the memory by local keys.
// AdviseMR returns EOPNOTSUPP if the device does not support advice, or this kind of advice. AdviseMR returns EINVAL if
// the region does not exist or is not on demand, EPERM for write access to a read-only region, and EFAULT for unmapped
// memory. AdviseMR may sleep. (ib_device_ops.advise_mr)
func (pd *PD) AdviseMR(advice MRAdvice, flags MRAdviceFlags, sgl []SGE) error {
	d := pd.dev
	defer pd.enterSleeping("PD.AdviseMR").leave()
	if err := d.checkActive(); err != nil {
		return fmt.Errorf("advise on %s: %w", d.name, err)
	}
	a, ok := As[MRAdviser](d.drv)
	if !ok {
		return fmt.Errorf("advise on %s: %w", d.name, syscall.EOPNOTSUPP)
	}
	if err := pd.addUse(d); err != nil {
		return fmt.Errorf("advise on %s: %w", d.name, err)
	}
	defer pd.dropUse()
	if err := a.AdviseMR(pd.drv, advice, flags, sgl); err != nil {
		return fmt.Errorf("advise on %s: %w", d.name, err)
	}
	return nil
}

// PD returns the domain of the region.
func (mr *MR) PD() *PD { return mr.pd }

// LKey returns the local key, for the consumer's own work requests.
func (mr *MR) LKey() uint32 { return mr.lkey.Load() }

// RKey returns the remote key, for peers.
func (mr *MR) RKey() uint32 { return mr.rkey.Load() }

// Region returns the registered memory, or nil for a region of AllocMR.
func (mr *MR) Region() *umem.Region {
	if mr.maxPages != 0 {
		return nil
	}
	return mr.region
}

// Addr returns the address of the first byte in work requests, or 0 before MR.Map. Addr may not sleep.
func (mr *MR) Addr() uint64 {
	if mr.region == nil {
		return 0
	}
	return mr.region.IOVA()
}

// Access returns the access rights of the registration.
func (mr *MR) Access() AccessFlags { return mr.access }

// Dereg ends the registration. After Dereg has returned, no peer can access the memory. Dereg returns EBUSY while a
// window is bound to the region, or while another call changes the region. Dereg may sleep. (ib_dereg_mr)
func (mr *MR) Dereg() error { return mr.destroyInContext(context.Background()) }

// DeregContext is Dereg with a limit for the wait. When ctx ends, deregistration continues. The region then rejects all
// calls except another Dereg, which joins the deregistration. DeregContext may sleep.
func (mr *MR) DeregContext(ctx context.Context) error { return mr.destroyInContext(ctx) }

func (mr *MR) destroyInContext(ctx context.Context) error {
	err := mr.destroyObject(ctx, "MR.Dereg", mr.deregAndRelease, func() { mr.releaseMemory() })
	if err != nil {
		return fmt.Errorf("deregister memory on %s: %w", mr.dev.name, err)
	}
	return nil
}

// releaseMemory runs after the driver has released the region.
func (mr *MR) releaseMemory() {
	if mr.region != nil {
		mr.region.Release()
	}
	mr.pd.dropUse()
}

func (mr *MR) deregAndRelease() error {
	if err := mr.beginRegionChange(); err != nil {
		return err
	}
	defer mr.changing.Store(false)
	return mr.drv.Dereg()
}

// beginRegionChange marks the region as being changed. The result of two concurrent changes would be undefined. The
// second change therefore fails and does not wait.
func (mr *MR) beginRegionChange() error {
	if mr.lifeState() == states.ObjectEnded {
		return mr.checkNotDestroyed()
	}
	if mr.changing.Swap(true) {
		return fmt.Errorf("another call is changing the region: %w", syscall.EBUSY)
	}
	return nil
}

// AH is an address handle: the destination of a datagram. (struct ib_ah)
type AH struct {
	object
	drv DriverAH
	pd  *PD
	gid atomic.Pointer[gidTableRef] // source GID
}

// CreateAH creates an address handle. CreateAH returns EOPNOTSUPP if the driver lacks datagram service. CreateAH may
// not sleep. (rdma_create_ah)
func (pd *PD) CreateAH(attr *AHAttr) (*AH, error) { return pd.createAH(attr, nil) }

func (pd *PD) createAH(attr *AHAttr, u *Udata) (*AH, error) {
	d := pd.dev
	fail := func(err error) (*AH, error) { return nil, fmt.Errorf("create ah on %s: %w", d.name, err) }
	f, err := pd.enterAtomicCall("PD.CreateAH")
	defer f.leave()
	if err != nil {
		return fail(err)
	}
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	drv, ok := As[AHDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	if err := pd.addUse(d); err != nil {
		return fail(err)
	}
	gid, err := d.takeGIDRef(attr)
	if err != nil {
		pd.dropUse()
		return fail(err)
	}
	ah := &AH{pd: pd}
	ah.gid.Store(gid)
	ah.initObject(d, kindAH, ah, &pd.object)
	if ah.drv, err = drv.CreateAH(pd.drv, attr, u); err == nil {
		err = ah.finishCreate(ah.drv.Destroy)
	}
	if err != nil {
		gid.release()
		pd.dropUse()
		return fail(err)
	}
	return ah, nil
}

// PD returns the domain of the handle.
func (ah *AH) PD() *PD { return ah.pd }

// Modify changes the address. Modify may not sleep. (rdma_modify_ah)
func (ah *AH) Modify(attr *AHAttr) error {
	f, err := ah.enterAtomicCall("AH.Modify")
	defer f.leave()
	if err != nil {
		return err
	}
	if err := ah.dev.checkActive(); err != nil {
		return fmt.Errorf("modify ah on %s: %w", ah.dev.name, err)
	}
	gid, err := ah.dev.takeGIDRef(attr)
	if err != nil {
		return fmt.Errorf("modify ah on %s: %w", ah.dev.name, err)
	}
	if err := ah.drv.Modify(attr); err != nil {
		gid.release()
		return err
	}
	ah.gid.Swap(gid).release()
	return nil
}

// Query returns the address. Query may not sleep. (rdma_query_ah)
func (ah *AH) Query() (AHAttr, error) {
	f, err := ah.enterAtomicCall("AH.Query")
	defer f.leave()
	if err != nil {
		return AHAttr{}, err
	}
	return ah.drv.Query()
}

// Destroy frees the handle. Destroy may not sleep. (rdma_destroy_ah)
func (ah *AH) Destroy() error {
	f, err := ah.enterAtomicCall("AH.Destroy")
	defer f.leave()
	if err == nil {
		err = ah.destroyWithoutSleep(ah.drv.Destroy)
	}
	if err != nil {
		return fmt.Errorf("destroy ah on %s: %w", ah.dev.name, err)
	}
	ah.gid.Swap(nil).release()
	ah.pd.dropUse()
	return nil
}
