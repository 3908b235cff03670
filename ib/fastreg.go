package ib

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/umem"
)

// FastReg holds the parameters of WRRegMR. The request registers the memory mapped by MR.Map under Key. The
// registration ends with a WRLocalInv of the key, or with a WRSendWithInv from the peer. (struct ib_reg_wr)
type FastReg struct {
	MR     *MR
	Key    uint32 // MR.RKey after MR.UpdateKey
	Access AccessFlags
}

// AllocMR creates a region without memory, which work requests can register repeatedly. The steps of one use are
// MR.Map, a posted WRRegMR, access to the memory, and a posted WRLocalInv. maxPages is the maximum number of pages of a
// mapping. AllocMR returns EOPNOTSUPP if the driver lacks the method. AllocMR may sleep. (ib_alloc_mr,
// IB_MR_TYPE_MEM_REG)
func (pd *PD) AllocMR(maxPages int) (*MR, error) {
	d := pd.dev
	defer pd.enterSleeping("PD.AllocMR").leave()
	fail := func(err error) (*MR, error) { return nil, fmt.Errorf("alloc mr on %s: %w", d.name, err) }
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	drv, ok := As[FastRegDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	if maxPages < 1 {
		return fail(fmt.Errorf("invalid number of pages %d: %w", maxPages, syscall.EINVAL))
	}
	if err := pd.addUse(d); err != nil {
		return fail(err)
	}
	mr := &MR{pd: pd, maxPages: maxPages}
	mr.initObject(d, kindMR, mr, &pd.object)
	var err error
	if mr.drv, err = drv.AllocMR(MRHandle{mr: mr}, pd.drv, maxPages); err != nil {
		pd.dropUse()
		return fail(err)
	}
	if err := mr.finishCreate(mr.drv.Dereg); err != nil {
		pd.dropUse()
		return fail(err)
	}
	return mr, nil
}

// Map sets the memory that the next WRRegMR registers. The memory consists of the ranges of list in order, and is
// addressed contiguously from iova. The ranges must be writable, and may have any alignment. Map does not retain list.
// The pages are charged to acct, which may be nil, until the next Map or Dereg. Map returns EINVAL if the ranges have
// more pages than AllocMR allowed. Map returns EBUSY while the last registration has not been invalidated, or while
// another call changes the region. Map may sleep. (ib_map_mr_sg of an IB_MR_TYPE_SG_GAPS)
func (mr *MR) Map(space umem.Space, acct *umem.Account, list []umem.Range, iova uint64) error {
	defer mr.enterMemoryChange("MR.Map").leave()
	fail := func(err error) error { return fmt.Errorf("map memory on %s: %w", mr.dev.name, err) }
	if err := mr.dev.checkActive(); err != nil {
		return fail(err)
	}
	drv, ok := As[FastMR](mr.drv)
	if !ok {
		return fail(fmt.Errorf("the region was not created by AllocMR: %w", syscall.EINVAL))
	}
	if err := mr.beginRegionChange(); err != nil {
		return fail(err)
	}
	defer mr.changing.Store(false)
	r, err := umem.GetList(space, acct, list, iova, true)
	if err != nil {
		return fail(err)
	}
	if err = nil; r.Pages() > uint64(mr.maxPages) {
		err = fmt.Errorf("%d pages exceed the limit of %d pages of the region: %w",
			r.Pages(), mr.maxPages, syscall.EINVAL)
	} else {
		err = drv.Map(r)
	}
	if err != nil {
		r.Release()
		return fail(err)
	}
	if mr.region != nil {
		mr.region.Release()
	}
	mr.region = r
	return nil
}

// UpdateKey changes the low 8 bits of the keys, which the consumer may choose. The next registration then has different
// keys. No work request with the region may be posted concurrently. UpdateKey may not sleep. (ib_update_fast_reg_key)
func (mr *MR) UpdateKey(variant uint8) {
	for _, k := range []*atomic.Uint32{&mr.lkey, &mr.rkey, &mr.driverKey} {
		k.Store(k.Load()&^0xff | uint32(variant))
	}
}
