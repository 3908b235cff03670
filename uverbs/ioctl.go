package uverbs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"

	"verbena/uapi"
	"verbena/uapi/verb"
	"verbena/umem"
)

const (
	ioctlHdrSize = 24
	attrSize     = 16
	// maxIoctl is the maximum length in bytes of header and attributes (PAGE_SIZE).
	maxIoctl = 4096
	// ioctlPeek is the length of the first read. The length covers the header and the attributes of most calls.
	ioctlPeek = ioctlHdrSize + 8*attrSize
)

// method is a method of the ioctl form together with its function.
type method struct {
	verb.Method
	spec *verb.Spec // nil for a method of the driver
	name string     // name of a method of the driver
	run  func(*ioctlCall) error
}

// String returns the C name without UVERBS_METHOD_.
func (m *method) String() string {
	if m.spec == nil {
		return m.name
	}
	return m.Method.String()
}

type methodID struct {
	object uapi.ObjectID
	method uapi.MethodID
}

// ioctlCall is one call of a method. (struct uverbs_attr_bundle)
type ioctlCall struct {
	call
	addr  uint64 // address of the attributes in the caller's memory
	raw   []attribute
	place map[uapi.AttrID]int // indexes in raw of the attributes that were passed
	outs  []callerOutput
	// changed marks the attributes that are written back to the caller.
	changed []bool
}

// Ioctl executes an ioctl(2) with an argument at arg of the caller's memory. Each ioctl is one method. Ioctl returns
// ENOTTY if the request is not RDMA_VERBS_IOCTL. Ioctl returns EPROTONOSUPPORT if the method or a mandatory attribute
// is unknown. Errors wrap a syscall.Errno. Ioctl may sleep. (ib_uverbs_ioctl)
func (f *File) Ioctl(c Caller, request uint32, arg uint64) error {
	if request != uapi.VerbsIoctl {
		return fmt.Errorf("ioctl %#x: %w", request, syscall.ENOTTY)
	}
	if !f.byIoctl.Load() {
		f.byIoctl.Store(true)
	}
	buf := commandBuffers.Get().(*commandBuffer)
	defer commandBuffers.Put(buf)
	if f.dev.srv.onVerb.Load() == nil && f.armPeekedCQ(c, buf, arg) {
		return nil
	}
	hdr, attrs, err := readIoctl(c.Space(), buf, arg)
	if err != nil {
		return fmt.Errorf("ioctl: %w", err)
	}
	d := f.dev
	if d.checkDriver && hdr.DriverID != d.driverID {
		return fmt.Errorf("ioctl names driver %v, device has %v: %w", hdr.DriverID, d.driverID, syscall.EINVAL)
	}
	id := methodID{hdr.ObjectID, hdr.MethodID}
	m := methods[id]
	if m == nil {
		m = d.methods[id]
	}
	if m == nil {
		return fmt.Errorf("ioctl: unknown method %d of object %d: %w", hdr.MethodID, hdr.ObjectID, syscall.EPROTONOSUPPORT)
	}
	k := &ioctlCall{call: call{f: f, caller: c, reader: -1, trace: commandTraceOf(c), verb: m.spec}, addr: arg +
		ioctlHdrSize,
		raw: attrs, changed: make([]bool, len(attrs))}
	if k.trace != nil {
		k.trace.Name, k.trace.Request = m.String(), formatAttributes(attrs)
	}
	if err := k.parseAttrs(&m.Method); err != nil {
		return fmt.Errorf("%v: %w", m, err)
	}
	if err := m.run(k); err != nil {
		return fmt.Errorf("%v: %w", m, err)
	}
	return nil
}

// readIoctl reads the header and the attributes.
func readIoctl(space umem.Space, buf *commandBuffer, arg uint64) (hdr uapi.IoctlHdr, attrs []attribute, err error) {
	// The rest of the page is mapped as well and can therefore be read in advance.
	n := ioctlPeek
	if left := umem.PageSize - arg%umem.PageSize; left < uint64(n) {
		n = max(int(left), ioctlHdrSize)
	}
	b, err := buf.read(space, arg, n)
	if err != nil {
		return hdr, nil, err
	}
	hdr, _ = uapi.Decode[uapi.IoctlHdr](b)
	length := int(hdr.Length)
	if length > maxIoctl || length != ioctlHdrSize+int(hdr.NumAttrs)*attrSize {
		return hdr, nil, fmt.Errorf("length %d with %d attributes: %w", length, hdr.NumAttrs, syscall.EINVAL)
	}
	if hdr.Reserved1 != 0 || hdr.Reserved2 != 0 {
		return hdr, nil, fmt.Errorf("reserved fields are not zero: %w", syscall.EPROTONOSUPPORT)
	}
	b = b[ioctlHdrSize:]
	if length > n {
		if b, err = buf.read(space, arg+ioctlHdrSize, length-ioctlHdrSize); err != nil {
			return hdr, nil, err
		}
	}
	attrs = make([]attribute, hdr.NumAttrs)
	for i := range attrs {
		attrs[i].Attr, _ = uapi.Decode[uapi.Attr](b[i*attrSize:])
	}
	return hdr, attrs, nil
}

// parseAttrs checks the attributes against the definition of the method. (uverbs_set_attr, uverbs_process_attr)
func (c *ioctlCall) parseAttrs(m *verb.Method) error {
	c.place = make(map[uapi.AttrID]int, len(c.raw))
	for i := range c.raw {
		a := &c.raw[i]
		spec := m.Attr(a.AttrID)
		if spec == nil {
			if a.Flags&uapi.AttrFMandatory != 0 {
				return fmt.Errorf("attribute %d: %w", a.AttrID, syscall.EPROTONOSUPPORT)
			}
			continue
		}
		if _, twice := c.place[a.AttrID]; twice {
			return fmt.Errorf("attribute %d is given twice: %w", a.AttrID, syscall.EINVAL)
		}
		if err := c.checkAttr(a, spec); err != nil {
			return fmt.Errorf("attribute %d: %w", a.AttrID, err)
		}
		c.place[a.AttrID] = i
	}
	for _, s := range m.Attrs {
		if _, ok := c.place[s.ID]; s.Mandatory && !ok {
			return fmt.Errorf("attribute %d is missing: %w", s.ID, syscall.EINVAL)
		}
	}
	return nil
}

func (c *ioctlCall) checkAttr(a *attribute, s *verb.Attr) error {
	n := int(a.Len)
	if s.Kind == verb.In && s.Extensible && n > s.Max {
		b, err := c.bytesOf(a)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(b[s.Max:], func(x byte) bool { return x != 0 }) {
			return fmt.Errorf("unknown data at the end are not zero: %w", syscall.EOPNOTSUPP)
		}
	}
	if n < s.Min || n > s.Max && !s.Extensible { // handles and descriptors have no length
		return fmt.Errorf("length %d: %w", n, syscall.EINVAL)
	}
	if a.AttrData != (uapi.AttrEnumData{}) {
		return fmt.Errorf("reserved fields are not zero: %w", syscall.EINVAL)
	}
	return nil
}

// attrOf returns an attribute, or nil if the caller did not pass it.
func (c *ioctlCall) attrOf(id uapi.AttrID) *attribute {
	if i, ok := c.place[id]; ok {
		return &c.raw[i]
	}
	return nil
}

// numberUpTo returns a number in an attribute. numberUpTo returns EINVAL if the number exceeds most. (uverbs_get_const)
func (c *ioctlCall) numberUpTo(id uapi.AttrID, most uint64) (uint64, error) {
	v := c.attrOf(id).Data
	if v > most {
		return 0, fmt.Errorf("attribute %d: %#x: %w", id, v, syscall.EINVAL)
	}
	return v, nil
}

// flagsOf returns the flags in an attribute, or 0 if the caller did not pass the attribute. flagsOf returns EINVAL if a
// flag is not allowed. (uverbs_get_flags32)
func (c *ioctlCall) flagsOf(id uapi.AttrID, allowed uint32) (uint32, error) {
	a := c.attrOf(id)
	if a == nil {
		return 0, nil
	}
	if a.Len != 4 && a.Len != 8 {
		return 0, fmt.Errorf("attribute %d: flags have %d bytes, want 4 or 8: %w", id, a.Len, syscall.EINVAL)
	}
	v := a.number()
	if bad := v &^ uint64(allowed); bad != 0 {
		return 0, fmt.Errorf("attribute %d: flags %#x: %w", id, bad, syscall.EINVAL)
	}
	return uint32(v), nil
}

// uint32Of and uint64 return the number in an attribute of 4 or 8 bytes, or 0 if the caller did not pass the attribute.
// (uverbs_copy_from)
func (c *ioctlCall) uint32Of(id uapi.AttrID) uint32 { return uint32(c.uint64Of(id)) }

func (c *ioctlCall) uint64Of(id uapi.AttrID) uint64 {
	if a := c.attrOf(id); a != nil {
		return a.number()
	}
	return 0
}

// inputBytes returns the bytes of an attribute, or nil if the caller did not pass the attribute.
func (c *ioctlCall) inputBytes(id uapi.AttrID) ([]byte, error) {
	a := c.attrOf(id)
	if a == nil || a.Len == 0 {
		return nil, nil
	}
	return c.bytesOf(a)
}

// bytesOf returns the bytes of an attribute. Up to 8 bytes are stored in the attribute itself.
func (c *ioctlCall) bytesOf(a *attribute) ([]byte, error) {
	if a.Len > maxCommand {
		return nil, fmt.Errorf("attribute %d: %d bytes: %w", a.AttrID, a.Len, syscall.EINVAL)
	}
	b := make([]byte, max(8, a.Len))
	if a.Len <= 8 {
		putUint64(b, a.Data)
	} else if err := c.caller.Space().ReadV([][]byte{b}, a.Data); err != nil {
		return nil, fmt.Errorf("read attribute %d: %w", a.AttrID, err)
	}
	return b[:a.Len], nil
}

// attribute is an attribute that the caller passed.
type attribute struct{ uapi.Attr }

// number returns the value that the attribute itself contains.
func (a *attribute) number() uint64 {
	if a.Len == 4 {
		var b [8]byte
		putUint64(b[:], a.Data)
		return uint64(binary.NativeEndian.Uint32(b[:]))
	}
	return a.Data
}

// setNumber sets the value of the attribute to a new object's handle or to a descriptor. The value is stored when the
// call succeeds.
func (c *ioctlCall) setNumber(id uapi.AttrID, v uint64) {
	i := c.place[id]
	c.raw[i].Data = v
	c.changed[i] = true
	c.trace.recordNumber(id, v)
}

// bufferLen returns the length of an attribute's buffer, or 0 if the caller did not pass the attribute.
func (c *ioctlCall) bufferLen(id uapi.AttrID) int {
	if a := c.attrOf(id); a != nil {
		return int(a.Len)
	}
	return 0
}

// setOutput sets the bytes that are stored in the buffer of an attribute when the call succeeds. setOutput truncates
// them to the length of the buffer, and marks the attribute as valid. setOutput does nothing if the caller did not pass
// the attribute. (uverbs_copy_to)
func (c *ioctlCall) setOutput(id uapi.AttrID, bufs ...[]byte) {
	i, ok := c.place[id]
	if !ok {
		return
	}
	if len(bufs) == 1 && c.trace != nil {
		if v, ok := decodeNumber(bufs[0]); ok {
			c.trace.recordNumber(id, v)
		}
	}
	room := int(c.raw[i].Len)
	for k, b := range bufs {
		bufs[k] = b[:min(len(b), room)]
		room -= len(bufs[k])
	}
	c.outs = append(c.outs, callerOutput{c.raw[i].Data, bufs})
	c.raw[i].Flags |= uapi.AttrFValidOutput
	c.changed[i] = true
}

// setOutputStruct is the equivalent of output for a structure. setOutputStruct also clears the rest of the buffer.
// (uverbs_copy_to_struct_or_zero)
func (c *ioctlCall) setOutputStruct(id uapi.AttrID, b []byte) {
	bufs := [][]byte{b}
	for rest := c.bufferLen(id) - len(b); rest > 0; rest -= len(zeros) {
		bufs = append(bufs, zeros[:min(rest, len(zeros))])
	}
	c.setOutput(id, bufs...)
}

// deliver stores the outputs and the changed attributes.
func (c *ioctlCall) deliver() error {
	for i := 0; i < len(c.raw); i++ {
		if !c.changed[i] {
			continue
		}
		first := i
		var b []byte
		for ; i < len(c.raw) && c.changed[i]; i++ {
			b = uapi.AppendTo(b, &c.raw[i].Attr)
		}
		c.outs = append(c.outs, callerOutput{c.addr + uint64(first*attrSize), [][]byte{b}})
	}
	if err := storeOutputs(c.caller.Space(), c.outs...); err != nil {
		return fmt.Errorf("write the response: %w", err)
	}
	return nil
}
