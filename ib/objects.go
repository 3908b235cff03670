package ib

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/internal/states"
	"verbena/umem"
)

// PD is a protection domain: memory and queue pairs work together only within one. (struct ib_pd)
type PD struct {
	object
	drv DriverPD
}

// AllocPD makes a protection domain. It may sleep. (ib_alloc_pd)
func (d *Device) AllocPD() (*PD, error) {
	defer d.sleeps("Device.AllocPD").leave()
	return d.allocPD(nil)
}

// allocPD is AllocPD for a user context too; u is nil for a consumer in this process, here and in what follows.
func (d *Device) allocPD(u *Udata) (*PD, error) {
	if err := d.begin(); err != nil {
		return nil, fmt.Errorf("alloc pd on %s: %w", d.name, err)
	}
	defer d.end()
	pd := &PD{}
	pd.bind(d, kindPD, pd, nil)
	drv, err := d.drv.AllocPD(u)
	if err != nil {
		return nil, fmt.Errorf("alloc pd on %s: %w", d.name, err)
	}
	pd.drv = drv
	if err := pd.born(pd.drv.Dealloc); err != nil {
		return nil, fmt.Errorf("alloc pd on %s: %w", d.name, err)
	}
	return pd, nil
}

// Dealloc frees the domain, EBUSY while something uses it. It may sleep. (ib_dealloc_pd)
func (pd *PD) Dealloc() error { return pd.destroyIn(context.Background()) }

// DeallocContext is Dealloc with a bound for the wait. When ctx ends, the call goes on: the domain is refused to all others, and
// another Dealloc joins it. It may sleep.
func (pd *PD) DeallocContext(ctx context.Context) error { return pd.destroyIn(ctx) }

func (pd *PD) destroyIn(ctx context.Context) error {
	f, err := pd.destroys("PD.Dealloc")
	defer f.leave()
	if err == nil {
		err = pd.end(ctx, "PD.Dealloc", pd.drv.Dealloc, func() {})
	}
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
	lkey, rkey uint32
	driverKey  uint32 // the local key as the driver knows it: see QPHandle.LKey

	maxPages int         // of AllocMR
	changing atomic.Bool // a Map, Rereg or Dereg is going on
}

// MRInit is what a memory region is made of: Length bytes at Addr of Space.
type MRInit struct {
	Space        umem.Space
	Account      *umem.Account // what the pages are charged to; may be nil
	Addr, Length uint64
	// IOVA is the address by which work requests name the first byte; 0: the same as Addr. With AccessZeroBased the first
	// byte has address 0, whatever IOVA is.
	IOVA   uint64
	Access AccessFlags
}

// RegMR registers memory. It may sleep. Errors: EFAULT where the memory is not mapped with the rights that the flags imply,
// ENOMEM over the account's limit, EINVAL for flags that make no sense (remote write or atomics without local write). With
// AccessOnDemand nothing is charged, and the mappings are looked at when the memory is used; Addr 0 with Length
// umem.Everything is all memory; EOPNOTSUPP or EINVAL if the device cannot do that (DeviceAttr.ODP). (ib_reg_user_mr)
func (pd *PD) RegMR(init MRInit) (*MR, error) {
	defer pd.sleeps("PD.RegMR").leave()
	if init.IOVA == 0 {
		init.IOVA = init.Addr
	}
	return pd.regMR(init, nil)
}

// RegBytes registers b, memory of this process, which the region keeps alive; [MR.Addr] is its address. For atomics b begins
// at a multiple of 8, as what make returns for 8 bytes or more does. Errors as of RegMR. It may sleep.
func (pd *PD) RegBytes(b []byte, access AccessFlags) (*MR, error) {
	defer pd.sleeps("PD.RegBytes").leave()
	space := umem.NewLocal()
	addr, err := space.Add(b)
	if err != nil {
		return nil, fmt.Errorf("register memory on %s: %w", pd.dev.name, err)
	}
	return pd.regMR(MRInit{Space: space, Addr: addr, Length: uint64(len(b)), IOVA: addr, Access: access}, nil)
}

// regMR takes IOVA as it is: 0 too is an address that a program may choose.
func (pd *PD) regMR(init MRInit, u *Udata) (*MR, error) {
	d := pd.dev
	fail := func(err error) (*MR, error) { return nil, fmt.Errorf("register memory on %s: %w", d.name, err) }
	if err := d.begin(); err != nil {
		return fail(err)
	}
	defer d.end()
	if err := checkAccess(init.Access); err != nil {
		return fail(err)
	}
	if err := pd.get(d); err != nil {
		return fail(err)
	}
	region, err := d.region(init)
	if err != nil {
		pd.put()
		return fail(err)
	}
	mr := &MR{pd: pd, region: region, access: init.Access}
	mr.bind(d, kindMR, mr, &pd.object)
	if mr.drv, err = d.drv.RegMR(MRHandle{mr: mr}, pd.drv, region, init.Access, u); err != nil {
		region.Release()
		pd.put()
		return fail(err)
	}
	if err := mr.born(mr.drv.Dereg); err != nil {
		region.Release()
		pd.put()
		return fail(err)
	}
	return mr, nil
}

// region makes the memory of a registration. (ib_umem_get, ib_umem_odp_get)
func (d *Device) region(init MRInit) (*umem.Region, error) {
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
	case init.Addr == 0 && init.Length == umem.Everything && attr.ODP.General&ODPImplicit == 0:
		return nil, fmt.Errorf("on-demand paging of all memory: %w", syscall.EINVAL)
	}
	return umem.OnDemand(init.Space, init.Addr, init.Length, init.IOVA)
}

// AdviseMR tells the device what is soon to be done with memory of the domain that is registered on demand: sgl names
// it by local keys. It may sleep. EOPNOTSUPP if the device takes no advice, or not this one; EINVAL for a region that
// is not there or not on demand, EPERM to write to what may not be written, EFAULT for what is not mapped.
// (ib_device_ops.advise_mr)
func (pd *PD) AdviseMR(advice MRAdvice, flags MRAdviceFlags, sgl []SGE) error {
	d := pd.dev
	defer pd.sleeps("PD.AdviseMR").leave()
	if err := d.usable(); err != nil {
		return fmt.Errorf("advise on %s: %w", d.name, err)
	}
	a, ok := As[MRAdviser](d.drv)
	if !ok {
		return fmt.Errorf("advise on %s: %w", d.name, syscall.EOPNOTSUPP)
	}
	if err := pd.get(d); err != nil {
		return fmt.Errorf("advise on %s: %w", d.name, err)
	}
	defer pd.put()
	if err := a.AdviseMR(pd.drv, advice, flags, sgl); err != nil {
		return fmt.Errorf("advise on %s: %w", d.name, err)
	}
	return nil
}

// PD is the domain that the region belongs to.
func (mr *MR) PD() *PD { return mr.pd }

// LKey names the region in the consumer's own work requests.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey names the region to peers.
func (mr *MR) RKey() uint32 { return mr.rkey }

// Region is the registered memory; of a region made by AllocMR, nil.
func (mr *MR) Region() *umem.Region {
	if mr.maxPages != 0 {
		return nil
	}
	return mr.region
}

// Addr is the address by which work requests name the region's first byte; 0 before MR.Map. It may
// not sleep.
func (mr *MR) Addr() uint64 {
	if mr.region == nil {
		return 0
	}
	return mr.region.IOVA()
}

// Access are the rights given at registration.
func (mr *MR) Access() AccessFlags { return mr.access }

// Dereg ends the registration; when it returns no peer can reach the memory. EBUSY while a window is bound to the
// region, or it is being changed. It may sleep. (ib_dereg_mr)
func (mr *MR) Dereg() error { return mr.destroyIn(context.Background()) }

// DeregContext is Dereg with a bound for the wait. When ctx ends, the call goes on: the region is refused to all others, and
// another Dereg joins it. It may sleep.
func (mr *MR) DeregContext(ctx context.Context) error { return mr.destroyIn(ctx) }

func (mr *MR) destroyIn(ctx context.Context) error {
	f, err := mr.destroys("MR.Dereg")
	defer f.leave()
	if err == nil {
		err = mr.end(ctx, "MR.Dereg", mr.dereg, func() { mr.released() })
	}
	if err != nil {
		return fmt.Errorf("deregister memory on %s: %w", mr.dev.name, err)
	}
	return nil
}

// released comes when the driver has let go of the region.
func (mr *MR) released() {
	if mr.region != nil {
		mr.region.Release()
	}
	mr.pd.put()
}

func (mr *MR) dereg() error {
	if err := mr.beginChange(); err != nil {
		return err
	}
	defer mr.changing.Store(false)
	return mr.drv.Dereg()
}

// beginChange guards what the midlayer knows of the region. It does not wait: the result of two changes at once would be
// undefined, so the second is refused.
func (mr *MR) beginChange() error {
	if mr.now() == states.ObjectEnded {
		return mr.live()
	}
	if mr.changing.Swap(true) {
		return fmt.Errorf("the region is being changed: %w", syscall.EBUSY)
	}
	return nil
}

// AH is an address handle: where a datagram goes. (struct ib_ah)
type AH struct {
	object
	drv DriverAH
	pd  *PD
	gid atomic.Pointer[gidHold] // of the source
}

// CreateAH makes an address handle. It may not sleep. EOPNOTSUPP from a driver without datagrams.
// (rdma_create_ah)
func (pd *PD) CreateAH(attr *AHAttr) (*AH, error) { return pd.createAH(attr, nil) }

func (pd *PD) createAH(attr *AHAttr, u *Udata) (*AH, error) {
	d := pd.dev
	fail := func(err error) (*AH, error) { return nil, fmt.Errorf("create ah on %s: %w", d.name, err) }
	f, err := pd.atomically("PD.CreateAH")
	defer f.leave()
	if err != nil {
		return fail(err)
	}
	if err := d.begin(); err != nil {
		return fail(err)
	}
	defer d.end()
	drv, ok := As[AHDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	if err := pd.get(d); err != nil {
		return fail(err)
	}
	gid, err := d.holdGID(attr)
	if err != nil {
		pd.put()
		return fail(err)
	}
	ah := &AH{pd: pd}
	ah.gid.Store(gid)
	ah.bind(d, kindAH, ah, &pd.object)
	if ah.drv, err = drv.CreateAH(pd.drv, attr, u); err == nil {
		err = ah.born(ah.drv.Destroy)
	}
	if err != nil {
		gid.put()
		pd.put()
		return fail(err)
	}
	return ah, nil
}

// PD is the domain that the handle belongs to.
func (ah *AH) PD() *PD { return ah.pd }

// Modify changes where the handle points. It may not sleep. (rdma_modify_ah)
func (ah *AH) Modify(attr *AHAttr) error {
	f, err := ah.atomically("AH.Modify")
	defer f.leave()
	if err != nil {
		return err
	}
	if err := ah.dev.usable(); err != nil {
		return fmt.Errorf("modify ah on %s: %w", ah.dev.name, err)
	}
	gid, err := ah.dev.holdGID(attr)
	if err != nil {
		return fmt.Errorf("modify ah on %s: %w", ah.dev.name, err)
	}
	if err := ah.drv.Modify(attr); err != nil {
		gid.put()
		return err
	}
	ah.gid.Swap(gid).put()
	return nil
}

// Query reports where the handle points. It may not sleep. (rdma_query_ah)
func (ah *AH) Query() (AHAttr, error) {
	f, err := ah.atomically("AH.Query")
	defer f.leave()
	if err != nil {
		return AHAttr{}, err
	}
	return ah.drv.Query()
}

// Destroy frees the handle. It may not sleep. (rdma_destroy_ah)
func (ah *AH) Destroy() error {
	f, err := ah.atomically("AH.Destroy")
	defer f.leave()
	if err == nil {
		err = ah.kill(ah.drv.Destroy)
	}
	if err != nil {
		return fmt.Errorf("destroy ah on %s: %w", ah.dev.name, err)
	}
	ah.gid.Swap(nil).put()
	ah.pd.put()
	return nil
}
