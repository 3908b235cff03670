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

// fileID identifies a file of a program.
type fileID struct{ dev, ino uint64 }

// xrcDomains holds the XRC domains of a device that programs share, indexed by the files that identify the domains.
// (ib_uverbs_device.xrcd_tree)
type xrcDomains struct {
	mu     sync.Mutex // also held while a domain is created or destroyed
	shared map[fileID]*xrcDomain
}

// xrcDomain is an XRC domain that one or more programs have opened.
type xrcDomain struct {
	*ib.XRCD
	// pd is the protection domain in which the targets are created. pd is not used for access checks. Access checks use
	// the protection domain of the receive queue that a packet names.
	pd     *ib.PD
	file   fileID // zero: not shared
	opened int    // under xrcDomains.mu

	//verbena:program those that share the domain; held while a target is made or destroyed, which may wait for one
	mu      sync.Mutex
	targets map[uint32]*xrcTarget // by number
}

// xrcTarget is an XRC target queue pair. It exists while at least one program has it open. (ib_qp.real_qp)
type xrcTarget struct {
	*ib.QP
	port *atomic.Uint32

	mu     sync.Mutex
	opened []*qpObject
}

// reportEvent reports an event to every program that has opened the target. reportEvent may not sleep.
func (t *xrcTarget) reportEvent(e ib.EventType) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.opened {
		o.asyncEvents.raiseAsync(&o.async, o.uid, e)
	}
}

// xrcdObject is an open XRC domain. (struct ib_uxrcd_object)
type xrcdObject struct {
	f      *File
	domain *xrcDomain
	users  atomic.Int32 // number of queues and queue pairs of this file in the domain
}

func (*xrcdObject) kind() objectKind { return kindXRCD }

// addUse and unuse count the objects that use the domain. Both accept a nil receiver.
func (o *xrcdObject) addUse() {
	if o != nil {
		o.users.Add(1)
	}
}

func (o *xrcdObject) dropUse() {
	if o != nil {
		o.users.Add(-1)
	}
}

func (o *xrcdObject) destroy() error {
	if n := o.users.Load(); n > 0 {
		return fmt.Errorf("XRC domain is in use by %d objects: %w", n, syscall.EBUSY)
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

// lookupXRCDomain is lookup for an XRC domain. For an invalid handle it returns EINVAL, like the kernel's commands.
func lookupXRCDomain(f *File, handle uint32) (objectUse[*xrcdObject], error) {
	x, err := lookup[*xrcdObject](f, handle)
	if err != nil && !errors.Is(err, syscall.EIO) {
		err = fmt.Errorf("XRC domain: %v: %w", err, syscall.EINVAL)
	}
	return x, err
}

// cmdOpenXRCD opens or creates an XRC domain. Programs that name the same file share a domain. The domain exists while
// at least one program has it open. (ib_uverbs_open_xrcd)
func cmdOpenXRCD(c *call) error {
	req, err := decodeRequest[uapi.OpenXRCD](c)
	if err != nil {
		return err
	}
	if err := c.f.checkContext(); err != nil {
		return err
	}
	if err := c.f.dev.checkNotInError(); err != nil { // for an existing domain the midlayer is not called
		return err
	}
	var file fileID
	if int32(req.FD) != -1 {
		if file.dev, file.ino, err = c.caller.FileInode(int(int32(req.FD))); err != nil {
			return fmt.Errorf("descriptor %d: %w: %w", int32(req.FD), err, syscall.EBADF)
		}
	}
	var domain *xrcDomain
	err = c.f.createChargedObject(kindXRCD, func() (err error) {
		domain, err = c.f.dev.xrc.open(c.f.dev.ib, file, req.OFlags, &c.udata)
		return err
	})
	if err != nil {
		return err
	}
	obj := c.f.objects.add(&xrcdObject{f: c.f, domain: domain})
	c.publishCreatedObject(obj)
	setResponse(c, uapi.OpenXRCDResp{XRCDHandle: obj.handle})
	return nil
}

func (x *xrcDomains) open(dev *ib.Device, file fileID, flags uint32, u *ib.Udata) (*xrcDomain, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	named := file != (fileID{})
	d := x.shared[file]
	switch {
	case named && d == nil && flags&unix.O_CREAT == 0:
		return nil, fmt.Errorf("the file has no XRC domain, and O_CREAT is not set: %w", syscall.EAGAIN)
	case d != nil && flags&unix.O_EXCL != 0:
		return nil, fmt.Errorf("the file already has an XRC domain, and O_EXCL is set: %w", syscall.EINVAL)
	case d != nil:
		d.opened++
		return d, nil
	}
	d = &xrcDomain{file: file, opened: 1, targets: map[uint32]*xrcTarget{}}
	var err error
	if d.XRCD, err = userOps.AllocXRCD(dev, u); err != nil {
		return nil, err
	}
	if d.pd, err = dev.AllocPD(); err != nil {
		_ = d.Dealloc() // the domain has no users
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

// cmdCloseXRCD closes a domain. cmdCloseXRCD returns EBUSY while the program has objects in the domain.
// (ib_uverbs_close_xrcd)
func cmdCloseXRCD(c *call) error {
	req, err := decodeRequest[uapi.CloseXRCD](c)
	if err != nil {
		return err
	}
	_, err = c.f.destroyObject(req.XRCDHandle, kindXRCD)
	return err
}

// createXRCTarget creates an XRC target queue pair. The handle field of the protection domain contains the handle of
// the XRC domain.
func (c *call) createXRCTarget(req *uapi.ExCreateQP) (resp uapi.CreateQPResp, err error) {
	x, err := lookupXRCDomain(c.f, req.PDHandle)
	if err != nil {
		return resp, err
	}
	defer x.releaseUse()
	d := x.res.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &xrcTarget{port: new(atomic.Uint32)}
	err = c.f.createChargedObject(kindQP, func() (err error) {
		t.QP, err = userOps.CreateQP(d.pd, ib.QPInitAttr{
			Type:  ib.QPTypeXRCTgt,
			XRCD:  d.XRCD,
			Event: func(_ *ib.QP, e ib.EventType) { t.reportEvent(e) },
		}, &c.udata)
		return err
	})
	if err != nil {
		return resp, err
	}
	d.targets[t.Num()] = t
	return c.openXRCTarget(x.res, t, req.UserHandle), nil
}

// cmdOpenQP opens an XRC target queue pair by its number. (ib_uverbs_open_qp)
func cmdOpenQP(c *call) error {
	req, err := decodeRequest[uapi.OpenQP](c)
	if err != nil {
		return err
	}
	if err := c.f.checkContext(); err != nil {
		return err
	}
	x, err := lookupXRCDomain(c.f, req.PDHandle)
	if err != nil {
		return err
	}
	defer x.releaseUse()
	if err := c.f.dev.checkNotInError(); err != nil { // for an existing target the midlayer is not called
		return err
	}
	d := x.res.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.targets[req.QPN]
	if t == nil || req.QPType != uapi.QPTXRCTgt {
		return fmt.Errorf("the domain has no XRC target with queue pair number %d: %w", req.QPN, syscall.EINVAL)
	}
	return c.f.createChargedObject(kindQP, func() error {
		setResponse(c, c.openXRCTarget(x.res, t, req.UserHandle))
		return nil
	})
}

// openXRCTarget creates the program's object for a target. The domain's mu must be held.
func (c *call) openXRCTarget(x *xrcdObject, t *xrcTarget, user uint64) uapi.CreateQPResp {
	o := &qpObject{QP: t.QP, f: c.f, uid: user, port: t.port, asyncEvents: c.asyncEventFile(), xrcd: x, target: t}
	t.mu.Lock()
	t.opened = append(t.opened, o)
	t.mu.Unlock()
	x.addUse()
	obj := c.f.objects.add(o)
	o.handle = obj.handle
	c.publishCreatedObject(obj)
	return uapi.CreateQPResp{QPHandle: obj.handle, QPN: t.Num()}
}

// closeXRCTarget closes a target. closeXRCTarget destroys the target if no other program has it open.
// (__ib_destroy_shared_qp)
func (o *qpObject) closeXRCTarget() error {
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
