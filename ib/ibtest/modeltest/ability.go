package modeltest

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
)

// DriverFeatures records the features that earlier calls have shown a driver to have or lack. A feature that has worked
// once must not be missing later. It is safe for concurrent use.
type DriverFeatures struct {
	mu sync.Mutex // guards the fields below

	has, lacks map[string]bool
	access     ib.AccessFlags // rights that regions can have; 0: unknown
	groups4    bool           // multicast groups are IPv4 addresses
	inline     uint32         // bytes of inline data that queue pairs can have, at most maxInlineCap
	purges     bool           // the destruction of a queue pair removes its completions
}

// NewDriverFeatures returns an empty record.
func NewDriverFeatures() *DriverFeatures {
	return &DriverFeatures{has: map[string]bool{}, lacks: map[string]bool{}}
}

// neededFeatures returns the optional features that a call needs, in the order in which a driver checks them.
func neededFeatures(c call) (list []string) {
	switch c := c.(type) {
	case reregMR:
		return []string{"reregistration"}
	case allocMR:
		return []string{"fast registration"}
	case allocMW:
		return []string{"memory windows"}
	case resizeCQ:
		return []string{"resizing CQs"}
	case createSRQ:
		return []string{"SRQs"}
	case allocXRCD:
		return []string{"XRC domains"}
	case attachMcast:
		return []string{"multicast"}
	case moderateCQ:
		return []string{"moderation"}
	case modifySRQ:
		if c.mask&ib.SRQAttrMaxWR != 0 {
			return []string{"resizing SRQs"}
		}
	case createAH:
		if list = []string{"address handles"}; c.unreachable {
			list = []string{"addresses of no device"}
		}
	case modifyAH:
		if c.to.unreachable {
			return []string{"addresses of no device"}
		}
	case createQP:
		return []string{c.kind.String()}
	case postSend:
		for _, s := range c.list {
			list = append(list, opcodeNames[s.op])
		}
	}
	return list
}

// lacksFeatureFor reports whether a call needs a feature that the driver lacks.
func (k *DriverFeatures) lacksFeatureFor(c call) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range neededFeatures(c) {
		if k.lacks[a] {
			return true
		}
	}
	return false
}

func isUnsupportedError(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// recordFeatures records the features that a call shows. It returns the part of the call that the driver has executed,
// or nil.
func (k *DriverFeatures) recordFeatures(c call, g *deviceResult) call {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := neededFeatures(c)
	post, isPost := c.(postSend)
	used := list
	if isPost {
		used = list[:min(max(g.n, 0), len(list))]
	} else if g.err != nil {
		used = nil
	}
	for _, a := range used {
		k.has[a] = true
	}
	if !isUnsupportedError(g.err) || len(used) >= len(list) || k.has[list[len(used)]] {
		return c
	}
	k.lacks[list[len(used)]] = true
	g.err = nil
	if isPost && g.n > 0 {
		return postSend{post.qp, post.list[:g.n]}
	}
	return nil
}

// probeRegionRights determines the rights that regions can have, unless an earlier run has.
func (x *modelRunner) probeRegionRights() error {
	k := x.Abilities
	k.mu.Lock()
	x.access, x.groups4, x.inline, x.m.Device.Purges = k.access, k.groups4, k.inline, k.purges
	k.mu.Unlock()
	if x.access != 0 {
		return nil
	}
	pd, err := x.Device.AllocPD()
	if err != nil {
		return err
	}
	x.access = ib.AccessLocalWrite
	for _, a := range []ib.AccessFlags{
		ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, ib.AccessMWBind, ib.AccessFlushGlobal,
		ib.AccessZeroBased,
	} {
		mr, err := pd.RegMR(ib.MRInit{
			Space: x.areas[0].space, Addr: x.areas[0].base, Length: 64, Access: a | ib.AccessLocalWrite,
		})
		if isUnsupportedError(err) {
			continue
		}
		if err != nil {
			return err
		}
		x.access |= a
		if err := mr.Dereg(); err != nil {
			return err
		}
	}
	if err := errors.Join(x.probeIPv6Groups(pd), x.probeInlineCap(pd)); err != nil {
		return err
	}
	if x.m.Device.Purges, err = PurgesCompletions(x.Device, x.Timeout); err != nil {
		return err
	}
	k.mu.Lock()
	k.access, k.groups4, k.inline, k.purges = x.access, x.groups4, x.inline, x.m.Device.Purges
	k.mu.Unlock()
	return pd.Dealloc()
}

// probeIPv6Groups determines whether the device lacks an address of the family of IPv6 groups.
func (x *modelRunner) probeIPv6Groups(pd *ib.PD) error {
	cq, err := x.Device.CreateCQ(ib.CQInit{Entries: 1})
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeUD, SendCQ: cq, RecvCQ: cq})
	if err == nil {
		g := x.groupAddress(1)
		if err = qp.AttachMcast(g, 0); err == nil {
			err = qp.DetachMcast(g, 0)
		}
		x.groups4 = errors.Is(err, syscall.EADDRNOTAVAIL)
		if err := qp.Destroy(); err != nil {
			return err
		}
	}
	return cq.Destroy()
}

// maxInlineCap is the largest inline capacity that a queue pair is created with.
const maxInlineCap = 512

// probeInlineCap determines how much inline data queue pairs can have. No attribute of a device has this limit.
func (x *modelRunner) probeInlineCap(pd *ib.PD) error {
	cq, err := x.Device.CreateCQ(ib.CQInit{Entries: 2})
	if err != nil {
		return err
	}
	for x.inline = maxInlineCap; x.inline > 0; x.inline /= 2 {
		qp, err := createProbeQP(pd, cq, x.inline)
		if err == nil {
			return errors.Join(qp.Destroy(), cq.Destroy())
		}
	}
	return cq.Destroy()
}

// createProbeQP creates a queue pair of the first type that the driver supports.
func createProbeQP(pd *ib.PD, cq *ib.CQ, inline uint32) (qp *ib.QP, err error) {
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUD, ib.QPTypeSRD} {
		qp, err = pd.CreateQP(ib.QPInitAttr{Type: kind, SendCQ: cq, RecvCQ: cq, Cap: ib.QPCap{
			MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: inline,
		}})
		if !isUnsupportedError(err) {
			break
		}
	}
	return qp, err
}

// PurgesCompletions reports whether the destruction of a queue pair removes its completions from the queue. Both is
// allowed. (mlx5_ib_cq_clean)
func PurgesCompletions(d *ib.Device, timeout time.Duration) (purges bool, err error) {
	flushed := make(chan bool, 1)
	pd, err := d.AllocPD()
	if err != nil {
		return false, err
	}
	cq, err := d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) {
		select {
		case flushed <- true:
		default:
		}
	}})
	if err != nil {
		return false, errors.Join(err, pd.Dealloc())
	}
	qp, err := createProbeQP(pd, cq, 0)
	if err != nil {
		return false, errors.Join(err, cq.Destroy(), pd.Dealloc())
	}
	err = qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1}, transitionMasks(qp.Type(), ib.QPInit))
	if err == nil {
		_, err = qp.PostRecv(ib.RecvWR{ID: 1})
	}
	if err == nil {
		_, err = cq.ReqNotify(ib.NotifyNextComp)
	}
	if err == nil {
		err = qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
	}
	present := false
	if err == nil {
		select {
		case present = <-flushed:
		case <-time.After(timeout):
		}
	}
	err = errors.Join(err, qp.Destroy())
	n, polled := cq.Poll(make([]ib.WC, 1))
	return present && n == 0, errors.Join(err, polled, cq.Destroy(), pd.Dealloc())
}

// filterSupported returns the operations and types that the driver is not known to lack.
func filterSupported[T any](k *DriverFeatures, list []T, name func(T) string) []T {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []T
	for _, x := range list {
		if !k.lacks[name(x)] {
			out = append(out, x)
		}
	}
	return out
}
