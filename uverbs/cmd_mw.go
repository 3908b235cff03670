package uverbs

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

type mwObject struct {
	*ib.MW
	pd uint32 // handle
}

func (*mwObject) kind() objectKind { return kindMW }
func (o *mwObject) destroy() error { return o.Dealloc() }

// cmdAllocMW allocates a memory window. Work requests bind the window. (ib_uverbs_alloc_mw)
func cmdAllocMW(c *call) error {
	req, err := decodeRequest[uapi.AllocMW](c)
	if err != nil {
		return err
	}
	if err := c.f.checkContext(); err != nil {
		return err
	}
	pd, err := lookup[*pdObject](c.f, req.PDHandle)
	if err != nil {
		return err
	}
	defer pd.releaseUse()
	var mw *ib.MW
	err = c.f.createChargedObject(kindMW, func() (err error) {
		mw, err = userOps.AllocMW(pd.res.PD, req.MWType, &c.udata)
		return err
	})
	if err != nil {
		return err
	}
	o := c.f.objects.add(&mwObject{mw, req.PDHandle})
	c.publishCreatedObject(o)
	setResponse(c, uapi.AllocMWResp{MWHandle: o.handle, RKey: mw.RKey()})
	return nil
}

// cmdDeallocMW frees a memory window. (ib_uverbs_dealloc_mw)
func cmdDeallocMW(c *call) error {
	req, err := decodeRequest[uapi.DeallocMW](c)
	if err != nil {
		return err
	}
	_, err = c.f.destroyObject(req.MWHandle, kindMW)
	return err
}

// cmdReregMR changes a registration. (ib_uverbs_rereg_mr)
func cmdReregMR(c *call) error {
	req, err := decodeRequest[uapi.ReregMR](c)
	if err != nil {
		return err
	}
	if err := c.f.checkContext(); err != nil {
		return err
	}
	const known = uapi.ReregMRChangeTranslation | uapi.ReregMRChangePD | uapi.ReregMRChangeAccess
	switch {
	case req.Flags == 0:
		return fmt.Errorf("rereg_mr without flags: %w", syscall.EINVAL)
	case req.Flags&^known != 0:
		return fmt.Errorf("unknown changes %#x: %w", uint32(req.Flags&^known), syscall.EOPNOTSUPP)
	case req.Flags&uapi.ReregMRChangeTranslation != 0:
		if err := checkPageOffset(req.Start, req.HCAVA); err != nil {
			return err
		}
	}
	if req.Flags&uapi.ReregMRChangeAccess != 0 {
		if err := checkAccessFlags(req.AccessFlags); err != nil {
			return err
		}
	}
	o, err := c.f.objects.takeForDestroy(req.MRHandle, kindMR)
	if err != nil {
		return err
	}
	defer o.publish()
	mr := o.res.(*mrObject)
	to := ib.MRChange{
		Space: c.caller.Space(), Account: c.caller.Account(), Addr: req.Start, Length: req.Length, IOVA: req.HCAVA,
		Access: req.AccessFlags,
	}
	if req.Flags&uapi.ReregMRChangePD != 0 {
		pd, err := lookup[*pdObject](c.f, req.PDHandle)
		if err != nil {
			return err
		}
		defer pd.releaseUse()
		to.PD = pd.res.PD
	}
	if err := userOps.ReregMR(mr.MR, req.Flags, to, &c.udata); err != nil {
		return err
	}
	if to.PD != nil {
		mr.pd = req.PDHandle
	}
	setResponse(c, uapi.ReregMRResp{LKey: mr.LKey(), RKey: mr.RKey()})
	return nil
}
