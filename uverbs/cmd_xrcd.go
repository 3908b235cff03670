package uverbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/uapi"
)

// fileID names a file of the program's.
type fileID struct{ dev, ino uint64 }

// xrcDomains are the XRC domains of a device that programs share, by the files that name them.
// (ib_uverbs_device.xrcd_tree)
type xrcDomains struct {
	mu     sync.Mutex // held also while a domain is made or destroyed
	shared map[fileID]*xrcDomain
}

// xrcDomain is an XRC domain as one or more programs have it open.
type xrcDomain struct {
	*ib.XRCD
	// pd is what the targets are made in. Nothing is checked against it: what a packet may reach is decided by the
	// domain of the receive queue that it names.
	pd     *ib.PD
	file   fileID // zero: nobody else finds it
	opened int    // under xrcDomains.mu

	//verbena:program those that share the domain; held also while a target is made or destroyed, which may wait for one of them
	mu      sync.Mutex
	targets map[uint32]*xrcTarget // by number
}

// xrcTarget is an XRC target queue pair, which lives as long as a program has it open. (ib_qp.real_qp)
type xrcTarget struct {
	*ib.QP
	port *atomic.Uint32

	mu     sync.Mutex
	opened []*qpObject
}

// event tells everybody who has it open. It may not sleep.
func (t *xrcTarget) event(e ib.EventType) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.opened {
		o.asyncEvents.async(&o.async, o.uid, e)
	}
}

// xrcdObject is an open XRC domain. (struct ib_uxrcd_object)
type xrcdObject struct {
	f      *File
	domain *xrcDomain
	users  atomic.Int32 // queues and queue pairs of this file in it
}

func (*xrcdObject) kind() kind { return kindXRCD }

// use and unuse count what refers to the domain; without one they do nothing.
func (o *xrcdObject) use() {
	if o != nil {
		o.users.Add(1)
	}
}

func (o *xrcdObject) unuse() {
	if o != nil {
		o.users.Add(-1)
	}
}

func (o *xrcdObject) destroy() error {
	if n := o.users.Load(); n > 0 {
		return fmt.Errorf("XRC domain is used by %d objects: %w", n, syscall.EBUSY)
	}
	x, d := &o.f.dev.xrc, o.domain
	x.mu.Lock()
	defer x.mu.Unlock()
	if d.opened > 1 {
		d.opened--
		return nil
	}
	if err := d.Dealloc(); err != nil {
		return err
	}
	d.opened = 0
	if d.file != (fileID{}) {
		delete(x.shared, d.file)
	}
	return d.pd.Dealloc()
}

// Abandon implements resource.
func (o *xrcdObject) Abandon() {
	o.domain.XRCD.Abandon()
	o.domain.pd.Abandon()
}

// lookupDomain is lookup of an XRC domain, whose handle is EINVAL if it is wrong, as in the kernel's commands.
func lookupDomain(f *File, handle uint32) (share[*xrcdObject], error) {
	x, err := lookup[*xrcdObject](f, handle)
	if err != nil && !errors.Is(err, syscall.EIO) {
		err = fmt.Errorf("XRC domain: %v: %w", err, syscall.EINVAL)
	}
	return x, err
}

// cmdOpenXRCD opens or makes an XRC domain. One that is named by a file is shared with whoever names the same file, for
// as long as somebody has it open. (ib_uverbs_open_xrcd)
func cmdOpenXRCD(c *call) error {
	req, err := request[uapi.OpenXRCD](c)
	if err != nil {
		return err
	}
	if err := c.f.context(); err != nil {
		return err
	}
	if err := c.f.dev.usable(); err != nil { // the midlayer is not asked about a domain that is there
		return err
	}
	var file fileID
	if int32(req.FD) != -1 {
		if file.dev, file.ino, err = c.caller.SameFile(int(int32(req.FD))); err != nil {
			return fmt.Errorf("descriptor %d: %w: %w", int32(req.FD), err, syscall.EBADF)
		}
	}
	var domain *xrcDomain
	err = c.f.charged(kindXRCD, func() (err error) {
		domain, err = c.f.dev.xrc.open(c.f.dev.ib, file, req.OFlags, &c.udata)
		return err
	})
	if err != nil {
		return err
	}
	obj := c.f.objects.add(&xrcdObject{f: c.f, domain: domain})
	c.created(obj)
	reply(c, uapi.OpenXRCDResp{XRCDHandle: obj.handle})
	return nil
}

func (x *xrcDomains) open(dev *ib.Device, file fileID, flags uint32, u *ib.Udata) (*xrcDomain, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	named := file != (fileID{})
	d := x.shared[file]
	switch {
	case named && d == nil && flags&unix.O_CREAT == 0:
		return nil, fmt.Errorf("the file names no XRC domain, and none is to be made: %w", syscall.EAGAIN)
	case d != nil && flags&unix.O_EXCL != 0:
		return nil, fmt.Errorf("the file names an XRC domain already: %w", syscall.EINVAL)
	case d != nil:
		d.opened++
		return d, nil
	}
	d = &xrcDomain{file: file, opened: 1, targets: map[uint32]*xrcTarget{}}
	var err error
	if d.XRCD, err = user.AllocXRCD(dev, u); err != nil {
		return nil, err
	}
	if d.pd, err = dev.AllocPD(); err != nil {
		_ = d.Dealloc() // nothing uses it
		return nil, err
	}
	if named {
		if x.shared == nil {
			x.shared = map[fileID]*xrcDomain{}
		}
		x.shared[file] = d
	}
	return d, nil
}

// cmdCloseXRCD closes a domain, EBUSY while the program has something in it. (ib_uverbs_close_xrcd)
func cmdCloseXRCD(c *call) error {
	req, err := request[uapi.CloseXRCD](c)
	if err != nil {
		return err
	}
	_, err = c.f.destroyObject(req.XRCDHandle, kindXRCD)
	return err
}

// createTarget makes an XRC target queue pair, in the domain whose handle is in the place of the protection domain's.
func (c *call) createTarget(req *uapi.ExCreateQP) (resp uapi.CreateQPResp, err error) {
	x, err := lookupDomain(c.f, req.PDHandle)
	if err != nil {
		return resp, err
	}
	defer x.done()
	d := x.res.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &xrcTarget{port: new(atomic.Uint32)}
	err = c.f.charged(kindQP, func() (err error) {
		t.QP, err = user.CreateQP(d.pd, ib.QPInitAttr{
			Type:  ib.QPTypeXRCTgt,
			XRCD:  d.XRCD,
			Event: func(_ *ib.QP, e ib.EventType) { t.event(e) },
		}, &c.udata)
		return err
	})
	if err != nil {
		return resp, err
	}
	d.targets[t.Num()] = t
	return c.openTarget(x.res, t, req.UserHandle), nil
}

// cmdOpenQP opens an XRC target queue pair by its number. (ib_uverbs_open_qp)
func cmdOpenQP(c *call) error {
	req, err := request[uapi.OpenQP](c)
	if err != nil {
		return err
	}
	if err := c.f.context(); err != nil {
		return err
	}
	x, err := lookupDomain(c.f, req.PDHandle)
	if err != nil {
		return err
	}
	defer x.done()
	if err := c.f.dev.usable(); err != nil { // nor about a target
		return err
	}
	d := x.res.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.targets[req.QPN]
	if t == nil || req.QPType != uapi.QPTXRCTgt {
		return fmt.Errorf("queue pair %d: no such XRC target in the domain: %w", req.QPN, syscall.EINVAL)
	}
	return c.f.charged(kindQP, func() error {
		reply(c, c.openTarget(x.res, t, req.UserHandle))
		return nil
	})
}

// openTarget makes the object; the domain's mu is held.
func (c *call) openTarget(x *xrcdObject, t *xrcTarget, user uint64) uapi.CreateQPResp {
	o := &qpObject{QP: t.QP, f: c.f, uid: user, port: t.port, asyncEvents: c.asyncEvents(), xrcd: x, target: t}
	t.mu.Lock()
	t.opened = append(t.opened, o)
	t.mu.Unlock()
	x.use()
	obj := c.f.objects.add(o)
	o.handle = obj.handle
	c.created(obj)
	return uapi.CreateQPResp{QPHandle: obj.handle, QPN: t.Num()}
}

// closeTarget closes a target, and destroys it if nobody else has it open. (__ib_destroy_shared_qp)
func (o *qpObject) closeTarget() error {
	d, t := o.xrcd.domain, o.target
	d.mu.Lock()
	defer d.mu.Unlock()
	t.mu.Lock()
	last := len(t.opened) == 1
	if !last {
		t.opened = slices.DeleteFunc(t.opened, func(x *qpObject) bool { return x == o })
	}
	t.mu.Unlock()
	if !last {
		return nil
	}
	if err := t.Destroy(); err != nil {
		return err
	}
	delete(d.targets, t.Num())
	return nil
}
