package uverbs

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

type ahObject struct{ *ib.AH }

func (*ahObject) kind() objectKind { return kindAH }
func (o *ahObject) destroy() error { return o.Destroy() }

// cmdCreateAH creates an address handle. (ib_uverbs_create_ah)
func cmdCreateAH(c *call) error {
	req, err := decodeRequest[uapi.CreateAH](c)
	if err != nil {
		return err
	}
	if err := c.f.checkContext(); err != nil {
		return err
	}
	if !c.f.dev.isValidPort(int(req.Attr.PortNum)) {
		return fmt.Errorf("no port %d: %w", req.Attr.PortNum, syscall.EINVAL)
	}
	pd, err := lookup[*pdObject](c.f, req.PDHandle)
	if err != nil {
		return err
	}
	defer pd.releaseUse()
	attr := ib.AHAttr{
		DLID:        req.Attr.DLID,
		SL:          req.Attr.SL,
		SrcPathBits: req.Attr.SrcPathBits,
		StaticRate:  req.Attr.StaticRate,
		Port:        req.Attr.PortNum,
	}
	if req.Attr.IsGlobal != 0 {
		attr.HasGRH = true
		attr.GRH = ib.GlobalRoute{
			DGID:         req.Attr.GRH.DGID,
			FlowLabel:    req.Attr.GRH.FlowLabel,
			SGIDIndex:    req.Attr.GRH.SGIDIndex,
			HopLimit:     req.Attr.GRH.HopLimit,
			TrafficClass: req.Attr.GRH.TrafficClass,
		}
	}
	var ah *ib.AH
	err = c.f.createChargedObject(kindAH, func() (err error) {
		ah, err = userOps.CreateAH(pd.res.PD, &attr, &c.udata)
		return err
	})
	if err != nil {
		return err
	}
	o := c.f.objects.add(&ahObject{ah})
	c.publishCreatedObject(o)
	setResponse(c, uapi.CreateAHResp{AHHandle: o.handle})
	return nil
}

// cmdDestroyAH frees an address handle. (ib_uverbs_destroy_ah)
func cmdDestroyAH(c *call) error {
	req, err := decodeRequest[uapi.DestroyAH](c)
	if err != nil {
		return err
	}
	_, err = c.f.destroyObject(req.AHHandle, kindAH)
	return err
}
