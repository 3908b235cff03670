package ib

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/uapi"
)

// MWType is the type of a memory window (IBA 10.6.7.2).
type MWType = uapi.MWType

const (
	MWType1 = uapi.MWType1 // valid for all queue pairs of the protection domain
	MWType2 = uapi.MWType2 // bound to one queue pair (2B); work requests can invalidate the window
)

// MW is a memory window: a key for a part of a region. Work requests bind and invalidate the window. (struct ib_mw)
type MW struct {
	object
	drv  DriverMW
	pd   *PD
	kind MWType
	rkey atomic.Uint32
}

// BindMW holds the parameters of WRBindMW, which binds the window to a part of a region. The region must have been
// registered with AccessMWBind. (struct ib_mw_bind_info)
type BindMW struct {
	MW *MW
	MR *MR
	// RKey supplies the low 8 bits of the new key. The upper 24 bits do not change. See IncRKey.
	RKey         uint32
	Addr, Length uint64 // address and length of the window in the region; Length 0 unbinds a window of type 1
	Access       AccessFlags
}

// AllocMW creates an unbound memory window. AllocMW returns EOPNOTSUPP if the driver lacks the method. AllocMW may
// sleep. (ib_alloc_mw)
func (pd *PD) AllocMW(kind MWType) (*MW, error) {
	defer pd.enterSleeping("PD.AllocMW").leave()
	return pd.allocMW(kind, nil)
}

func (pd *PD) allocMW(kind MWType, u *Udata) (*MW, error) {
	d := pd.dev
	fail := func(err error) (*MW, error) { return nil, fmt.Errorf("alloc mw on %s: %w", d.name, err) }
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	drv, ok := As[MWDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	if kind != MWType1 && kind != MWType2 {
		return fail(fmt.Errorf("unknown window type %d: %w", kind, syscall.EINVAL))
	}
	if err := pd.addUse(d); err != nil {
		return fail(err)
	}
	mw := &MW{pd: pd, kind: kind}
	mw.initObject(d, kindMW, mw, &pd.object)
	var err error
	if mw.drv, err = drv.AllocMW(MWHandle{mw}, pd.drv, kind, u); err != nil {
		pd.dropUse()
		return fail(err)
	}
	if err := mw.finishCreate(mw.drv.Dealloc); err != nil {
		pd.dropUse()
		return fail(err)
	}
	return mw, nil
}

// PD returns the domain of the window.
func (mw *MW) PD() *PD { return mw.pd }

// Type returns the type of the window.
func (mw *MW) Type() MWType { return mw.kind }

// RKey returns the key for peers. A bind changes the key when the device executes it. Until its completion has been
// polled, RKey may return the former key or the new one. An invalidation does not change the key.
func (mw *MW) RKey() uint32 { return mw.rkey.Load() }

// Dealloc frees the window, whether it is bound or not. After Dealloc has returned, no peer can access memory with the
// window's key. Dealloc may sleep. (ib_dealloc_mw)
func (mw *MW) Dealloc() error { return mw.destroyInContext(context.Background()) }

// DeallocContext is Dealloc with a limit for the wait. When ctx ends, deallocation continues. The window then rejects
// all calls except another Dealloc, which joins the deallocation. DeallocContext may sleep.
func (mw *MW) DeallocContext(ctx context.Context) error { return mw.destroyInContext(ctx) }

func (mw *MW) destroyInContext(ctx context.Context) error {
	err := mw.destroyObject(ctx, "MW.Dealloc", mw.drv.Dealloc, func() { mw.pd.dropUse() })
	if err != nil {
		return fmt.Errorf("dealloc mw on %s: %w", mw.dev.name, err)
	}
	return nil
}

// IncRKey returns k with its low 8 bits incremented. The consumer may choose these bits. (ib_inc_rkey)
func IncRKey(k uint32) uint32 { return k&^0xff | (k+1)&0xff }
