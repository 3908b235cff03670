package uverbs

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
	"verbena/umem"
)

type pdObject struct{ *ib.PD }

func (*pdObject) kind() objectKind { return kindPD }
func (o *pdObject) destroy() error { return o.Dealloc() }

// cmdAllocPD allocates a protection domain. (ib_uverbs_alloc_pd)
func cmdAllocPD(c *call) error {
	if _, err := decodeRequest[uapi.AllocPD](c); err != nil {
		return err
	}
	if err := c.f.checkContext(); err != nil {
		return err
	}
	var pd *ib.PD
	err := c.f.createChargedObject(kindPD, func() (err error) {
		pd, err = userOps.AllocPD(c.f.dev.ib, &c.udata)
		return err
	})
	if err != nil {
		return err
	}
	o := c.f.objects.add(&pdObject{pd})
	c.publishCreatedObject(o)
	setResponse(c, uapi.AllocPDResp{PDHandle: o.handle})
	return nil
}

// cmdDeallocPD frees a protection domain. (ib_uverbs_dealloc_pd)
func cmdDeallocPD(c *call) error {
	req, err := decodeRequest[uapi.DeallocPD](c)
	if err != nil {
		return err
	}
	_, err = c.f.destroyObject(req.PDHandle, kindPD)
	return err
}

type mrObject struct {
	*ib.MR
	pd uint32 // handle
}

func (*mrObject) kind() objectKind { return kindMR }
func (o *mrObject) destroy() error { return o.Dereg() }

// knownAccessFlags is the set of rights that the ABI defines, including rights that the device lacks.
const knownAccessFlags = uapi.AccessFlushPersistent<<1 - 1 | uapi.AccessOptionalRange

// checkAccessFlags checks for unknown access rights. The midlayer checks that remote write access implies local write
// access. (ib_check_mr_access)
func checkAccessFlags(flags uapi.AccessFlags) error {
	if bad := flags &^ knownAccessFlags; bad != 0 {
		return fmt.Errorf("unknown access flags %#x: %w", uint32(bad), syscall.EINVAL)
	}
	return nil
}

// checkPageOffset checks that the memory and its IOVA have the same offset in a page.
func checkPageOffset(start, iova uint64) error {
	if (start^iova)&(umem.PageSize-1) != 0 {
		return fmt.Errorf("memory at %#x cannot have the IOVA %#x: the offsets in the page differ: %w", start, iova,
			syscall.EINVAL)
	}
	return nil
}

// cmdRegMR registers memory. (ib_uverbs_reg_mr)
func cmdRegMR(c *call) error {
	req, err := decodeRequest[uapi.RegMR](c)
	if err != nil {
		return err
	}
	resp, err := c.regMR(&req)
	if err != nil {
		return err
	}
	setResponse(c, resp)
	return nil
}

// newRegMRRequest registers memory of the caller.
func (c *call) regMR(req *uapi.RegMR) (resp uapi.RegMRResp, err error) {
	if err := checkPageOffset(req.Start, req.HCAVA); err != nil {
		return resp, err
	}
	if err := c.f.checkContext(); err != nil {
		return resp, err
	}
	if err := checkAccessFlags(req.AccessFlags); err != nil {
		return resp, err
	}
	pd, err := lookup[*pdObject](c.f, req.PDHandle)
	if err != nil {
		return resp, err
	}
	defer pd.releaseUse()
	var mr *ib.MR
	err = c.f.createChargedObject(kindMR, func() (err error) {
		mr, err = userOps.RegMR(pd.res.PD, ib.MRInit{Space: c.caller.Space(), Account: c.caller.Account(), Addr: req.Start,
			Length: req.Length, IOVA: req.HCAVA, Access: req.AccessFlags}, &c.udata)
		return err
	})
	if err != nil {
		return resp, err
	}
	o := c.f.objects.add(&mrObject{mr, req.PDHandle})
	c.publishCreatedObject(o)
	return uapi.RegMRResp{MRHandle: o.handle, LKey: mr.LKey(), RKey: mr.RKey()}, nil
}

// cmdDeregMR deregisters memory. (ib_uverbs_dereg_mr)
func cmdDeregMR(c *call) error {
	req, err := decodeRequest[uapi.DeregMR](c)
	if err != nil {
		return err
	}
	_, err = c.f.destroyObject(req.MRHandle, kindMR)
	return err
}
