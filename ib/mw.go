package ib

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/uapi"
)

// MWType is the kind of a memory window (IBA 10.6.7.2).
type MWType = uapi.MWType

const (
	MWType1 = uapi.MWType1 // peers of any queue pair of its domain may use it
	MWType2 = uapi.MWType2 // bound to one queue pair (2B), and can be invalidated by work requests
)

// MW is a memory window: a key to a part of a region that can be given out and taken back by work requests.
// (struct ib_mw)
type MW struct {
	object
	drv  DriverMW
	pd   *PD
	kind MWType
	rkey atomic.Uint32
}

// BindMW is what a work request with WRBindMW does: it makes the window's key stand for a part of a region, which
// must have been registered with AccessMWBind. (struct ib_mw_bind_info)
type BindMW struct {
	MW *MW
	MR *MR
	// RKey has the low 8 bits of the window's key from now on, of which the upper 24 stay as they are; see IncRKey.
	RKey         uint32
	Addr, Length uint64 // in terms of the region. Length 0 unbinds a window of type 1.
	Access       AccessFlags
}

// AllocMW makes a memory window that is not bound. It may sleep. EOPNOTSUPP from a driver without. (ib_alloc_mw)
func (pd *PD) AllocMW(kind MWType) (*MW, error) {
	defer pd.sleeps("PD.AllocMW").leave()
	return pd.allocMW(kind, nil)
}

func (pd *PD) allocMW(kind MWType, u *Udata) (*MW, error) {
	d := pd.dev
	fail := func(err error) (*MW, error) { return nil, fmt.Errorf("alloc mw on %s: %w", d.name, err) }
	if err := d.begin(); err != nil {
		return fail(err)
	}
	defer d.end()
	drv, ok := As[MWDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	if kind != MWType1 && kind != MWType2 {
		return fail(fmt.Errorf("no window type %d: %w", kind, syscall.EINVAL))
	}
	if err := pd.get(d); err != nil {
		return fail(err)
	}
	mw := &MW{pd: pd, kind: kind}
	mw.bind(d, kindMW, mw, &pd.object)
	var err error
	if mw.drv, err = drv.AllocMW(MWHandle{mw}, pd.drv, kind, u); err != nil {
		pd.put()
		return fail(err)
	}
	if err := mw.born(mw.drv.Dealloc); err != nil {
		pd.put()
		return fail(err)
	}
	return mw, nil
}

// PD is the domain that the window belongs to.
func (mw *MW) PD() *PD { return mw.pd }

// Type is the kind of window.
func (mw *MW) Type() MWType { return mw.kind }

// RKey names the window to peers; it changes with each bind.
func (mw *MW) RKey() uint32 { return mw.rkey.Load() }

// Dealloc frees the window, bound or not; when it returns no peer can reach the memory by its key. It may sleep.
// (ib_dealloc_mw)
func (mw *MW) Dealloc() error { return mw.destroyIn(context.Background()) }

// DeallocContext is Dealloc with a bound for the wait. When ctx ends, the call goes on: the window is refused to all others, and
// another Dealloc joins it. It may sleep.
func (mw *MW) DeallocContext(ctx context.Context) error { return mw.destroyIn(ctx) }

func (mw *MW) destroyIn(ctx context.Context) error {
	f, err := mw.destroys("MW.Dealloc")
	defer f.leave()
	if err == nil {
		err = mw.end(ctx, "MW.Dealloc", mw.drv.Dealloc, func() { mw.pd.put() })
	}
	if err != nil {
		return fmt.Errorf("dealloc mw on %s: %w", mw.dev.name, err)
	}
	return nil
}

// IncRKey is the key with the next value of the part that a consumer may choose, its low 8 bits. (ib_inc_rkey)
func IncRKey(k uint32) uint32 { return k&^0xff | (k+1)&0xff }
