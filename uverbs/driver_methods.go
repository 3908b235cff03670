package uverbs

import (
	"errors"
	"fmt"
	"path"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
	"verbena/uapi/verb"
)

// sysfsFilesDriver is implemented by an [ib.Driver] with additional sysfs files.
// (ib_device_ops.device_group, port_groups)
type sysfsFilesDriver interface {
	// SysfsFiles returns a function for each file, by the path below /sys/class/infiniband/DEV. The function returns
	// the contents of the file. The functions may sleep.
	SysfsFiles() map[string]func() (string, error)
}

// checkedDriverMethods checks the methods of a driver, and returns the methods that programs can call.
func checkedDriverMethods(dev *ib.Device) (map[methodID]*method, error) {
	d, ok := ib.As[ib.MethodDriver](userOps.Driver(dev))
	if !ok {
		return nil, nil
	}
	known := map[methodID]*method{}
	for _, m := range d.Methods() {
		id := methodID{m.Object, m.Method.Method}
		switch {
		case m.Name == "" || m.Run == nil:
			return nil, fmt.Errorf("method %d of object %d has no name or no function", id.method, id.object)
		case id.object&uapi.IDNSMask == 0 && id.method&uapi.IDNSMask == 0:
			return nil, fmt.Errorf("method %s: neither method %d nor object %d is in the driver's namespace", m.Name, id.method,
				id.object)
		case known[id] != nil:
			return nil, fmt.Errorf("methods %s and %s have the same number", known[id], m.Name)
		}
		for _, a := range m.Attrs {
			switch a.Kind {
			case verb.In, verb.Out:
			case verb.Use:
				if _, ok := objectKinds[a.Object]; !ok {
					return nil, fmt.Errorf("method %s: attribute %d names an object of unknown type %d", m.Name, a.ID,
						a.Object)
				}
			default:
				return nil, fmt.Errorf("method %s: attribute %d creates or destroys an object, but a driver's method must not",
					m.Name, a.ID)
			}
		}
		known[id] = &method{m.Method, nil, m.Name, func(c *ioctlCall) error { return c.runDriverMethod(&m) }}
	}
	return known, nil
}

// checkedSysfsFiles checks the paths of a driver's files.
func checkedSysfsFiles(dev *ib.Device) (map[string]func() (string, error), error) {
	d, ok := ib.As[sysfsFilesDriver](userOps.Driver(dev))
	if !ok {
		return nil, nil
	}
	files := d.SysfsFiles()
	for name := range files {
		if path.Clean("/"+name) != "/"+name || name == "" {
			return nil, fmt.Errorf("sysfs file %q of the driver: not a clean path", name)
		}
	}
	return files, nil
}

// driverCall is a call of a driver's method.
type driverCall struct {
	*ioctlCall
	inputs  map[uapi.AttrID][]byte
	objects map[uapi.AttrID]objectUse[resource]
}

// runDriverMethod calls a method of the driver. (ib_uverbs_run_method)
func (c *ioctlCall) runDriverMethod(m *ib.DriverMethod) error {
	d := &driverCall{c, map[uapi.AttrID][]byte{}, map[uapi.AttrID]objectUse[resource]{}}
	// The memory of the program may block. The input is therefore read before the context is held.
	for _, a := range m.Attrs {
		if a.Kind != verb.In {
			continue
		}
		b, err := c.inputBytes(a.ID)
		if err != nil {
			return err
		}
		d.inputs[a.ID] = b
	}
	return c.runNative(func() error {
		if m.Effect != verb.Lists {
			if err := c.f.checkContext(); err != nil {
				return err
			}
		}
		if m.Effect == verb.Makes || m.Effect == verb.Posts {
			if err := c.f.dev.checkNotInError(); err != nil {
				return err
			}
		}
		defer d.releaseObjects()
		if err := d.useObjects(m); err != nil {
			return err
		}
		err := m.Run(d)
		if errno := syscall.Errno(0); err != nil && !errors.As(err, &errno) {
			return fmt.Errorf("%v: %w", err, syscall.EIO)
		}
		return err
	})
}

// useObjects takes a share of each object that the attributes name.
func (c *driverCall) useObjects(m *ib.DriverMethod) error {
	for _, a := range m.Attrs {
		given := c.attrOf(a.ID)
		if a.Kind != verb.Use || given == nil {
			continue
		}
		handle, err := given.handle()
		if err != nil {
			return err
		}
		s, err := lookup[resource](c.f, handle)
		if err != nil {
			return fmt.Errorf("attribute %d: %w", a.ID, err)
		}
		c.objects[a.ID] = s
		if k := objectKinds[a.Object]; s.res.kind() != k {
			return fmt.Errorf("attribute %d: handle %d refers to a %v, want a %v: %w",
				a.ID, handle, s.res.kind(), k, syscall.EINVAL)
		}
	}
	return nil
}

func (c *driverCall) releaseObjects() {
	for _, s := range c.objects {
		s.releaseUse()
	}
}

// Context returns the context of the caller.
func (c *driverCall) Context() ib.UserContext { return userContext{c.f} }

// Has reports whether the caller passed an attribute.
func (c *driverCall) Has(id uapi.AttrID) bool { return c.attrOf(id) != nil }

// Number returns an attribute of 4 or 8 bytes, or 0 if the caller did not pass it.
func (c *driverCall) Number(id uapi.AttrID) uint64 { return c.uint64Of(id) }

// Bytes returns an input attribute, or nil if the caller did not pass it.
func (c *driverCall) Bytes(id uapi.AttrID) []byte { return c.inputs[id] }

// Object returns the driver's side of the object that an attribute names, or nil if the caller did not pass it.
func (c *driverCall) Object(id uapi.AttrID) any {
	switch r := c.objects[id].res.(type) {
	case *pdObject:
		return userOps.DriverSide(r.PD)
	case *ahObject:
		return userOps.DriverSide(r.AH)
	case *mrObject:
		return userOps.DriverSide(r.MR)
	case *mwObject:
		return userOps.DriverSide(r.MW)
	case *cqObject:
		return userOps.DriverSide(r.CQ)
	case *qpObject:
		return userOps.DriverSide(r.QP)
	case *srqObject:
		return userOps.DriverSide(r.SRQ)
	case *xrcdObject:
		return userOps.DriverSide(r.domain.XRCD)
	}
	return nil
}

// Output sets an output attribute, truncated to the caller's buffer.
func (c *driverCall) Output(id uapi.AttrID, b []byte) { c.setOutputStruct(id, b) }
