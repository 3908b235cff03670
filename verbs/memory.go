package verbs

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"syscall"

	"verbena/uapi"
	"verbena/verbs/internal/transport"
)

var (
	errInvalid = error(syscall.EINVAL)
	errBusy    = error(syscall.EBUSY)
	errNoGID   = fmt.Errorf("no address: %w", syscall.EADDRNOTAVAIL)
)

// Access holds access rights for registered memory (enum ibv_access_flags). The device itself may always read
// registered memory.
type Access = uapi.AccessFlags

// The next constants are the access rights.
const (
	LocalWrite   = uapi.AccessLocalWrite
	RemoteWrite  = uapi.AccessRemoteWrite // requires LocalWrite
	RemoteRead   = uapi.AccessRemoteRead
	RemoteAtomic = uapi.AccessRemoteAtomic // requires LocalWrite
	BindWindows  = uapi.AccessMWBind
	OnDemand     = uapi.AccessOnDemand
	ZeroBased    = uapi.AccessZeroBased
	// FlushGlobal and FlushPersistent allow peers to FLUSH.
	FlushGlobal     = uapi.AccessFlushGlobal
	FlushPersistent = uapi.AccessFlushPersistent
)

// SGE is a range of registered memory. (struct ibv_sge)
type SGE struct {
	Addr   uint64
	Length uint32 // in bytes
	LKey   uint32
}

// PD is a protection domain. (struct ibv_pd)
type PD struct {
	d      *Device
	handle uint32
	life   useCount
}

// useCount counts the uses of an object, and ends exactly once.
type useCount struct {
	mu     sync.Mutex
	users  int
	calls  int           // calls in progress
	quiet  chan struct{} // closed when no call is in progress; nil if no goroutine waits
	closed bool
}

// addUse records that another object is created from this object. dropUse records the end of the other object.
func (l *useCount) addUse() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.users++
	return nil
}

func (l *useCount) dropUse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users--
}

// callWhileOpen calls f with the object held open. Without the hold, a concurrent Close could free the handle and the
// kernel could reuse it. Calls run concurrently. A blocked call therefore does not delay another call, such as a
// transition to ERR.
func (l *useCount) callWhileOpen(f func() error) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.calls++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.calls--; l.calls == 0 && l.quiet != nil {
			close(l.quiet)
			l.quiet = nil
		}
	}()
	return f()
}

// closeOnce calls f, once. closeOnce fails if other objects use this object while the device is open. closeOnce waits
// for calls in progress. After an error the object remains open.
func (l *useCount) closeOnce(d *Device, f func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.calls > 0 {
		if l.quiet == nil {
			l.quiet = make(chan struct{})
		}
		quiet := l.quiet
		l.mu.Unlock()
		<-quiet
		l.mu.Lock()
	}
	switch {
	case l.closed:
		return nil
	case l.users > 0 && !d.isClosed():
		return fmt.Errorf("%d objects use the object, close them first: %w", l.users, errBusy)
	}
	if err := f(); err != nil {
		return err
	}
	l.closed = true
	return nil
}

// AllocPD allocates a protection domain. AllocPD may sleep. (ibv_alloc_pd)
func (d *Device) AllocPD() (*PD, error) {
	h, err := d.cmd.AllocPD()
	if err != nil {
		return nil, wrapOpError("allocate a PD", d.name, err)
	}
	return &PD{d: d, handle: h}, nil
}

// Device returns the device of the domain.
func (p *PD) Device() *Device { return p.d }

// Close frees the domain. Close returns EBUSY while objects use the domain. Close may sleep. (ibv_dealloc_pd)
func (p *PD) Close() error {
	err := p.life.closeOnce(p.d, func() error { return ignoreRemovedError(p.d.cmd.DeallocPD(p.handle)) })
	return wrapOpError("close a PD", p.d.name, err)
}

// ignoreRemovedError ignores the error of destroying an object on a removed device.
func ignoreRemovedError(err error) error {
	switch {
	case err == nil, isErrno(err, syscall.EIO), isErrno(err, syscall.ENODEV), err == ErrClosed:
		return nil
	case isClosed(err):
		return nil
	}
	return err
}

// MR is registered memory. (struct ibv_mr)
type MR struct {
	pd     *PD
	handle uint32
	lkey   uint32
	rkey   uint32
	mem    []byte
	iova   uint64
	home   *Buffer         // the owner of the memory; nil for a slice of the program
	pin    *runtime.Pinner // for a slice of the program; nil for a buffer, or after unpinning; under life.mu
	id     uint64          // number of the registration
	life   useCount
}

// Alloc returns registered memory in a new buffer. The memory is zeroed and page-aligned. MR.Close frees it. Alloc may
// sleep.
func (p *PD) Alloc(size int, access Access) (*MR, error) {
	b, err := p.d.Alloc(size)
	if err != nil {
		return nil, err
	}
	defer b.Close() // the registration holds its own reference
	return p.Register(b, access)
}

// Register registers a buffer. Register may sleep. (ibv_reg_mr)
func (p *PD) Register(b *Buffer, access Access) (*MR, error) {
	mem, err := b.addRef()
	if err != nil {
		return nil, wrapOpError("register memory", p.d.name, err)
	}
	m, err := p.registerBytes(mem, access)
	if err != nil {
		b.dropRef()
		return nil, wrapOpError(fmt.Sprintf("register %d bytes", len(mem)), p.d.name, err)
	}
	m.home = b
	return m, nil
}

// RegSlice registers a slice of the program. The slice is pinned until MR.Close. On a service's device, buffers of
// [Device.Alloc] are faster. RegSlice may sleep.
func (p *PD) RegSlice(b []byte, access Access) (*MR, error) {
	var pin runtime.Pinner
	if len(b) > 0 {
		pin.Pin(&b[0])
	}
	m, err := p.registerBytes(b, access)
	if err != nil {
		pin.Unpin()
		return nil, wrapOpError(fmt.Sprintf("register %d bytes", len(b)), p.d.name, err)
	}
	m.life.mu.Lock()
	m.pin = &pin
	m.life.mu.Unlock()
	pinnedSlices.Store(m, struct{}{})
	if p.d.isClosed() {
		m.abandon() // Device.Close may have called abandon before the memory was recorded
	}
	return m, nil
}

// pinnedSlices holds the registrations of slices. pinnedSlices keeps memory that a device may write pinned even if the
// program has dropped the MR.
var pinnedSlices sync.Map

// abandon unpins a slice. The device is closed and can no longer access the slice.
func (m *MR) abandon() {
	m.life.mu.Lock()
	defer m.life.mu.Unlock()
	m.unpinSlice()
}

// unpinSlice must be called with life.mu held.
func (m *MR) unpinSlice() {
	if m.pin != nil {
		m.pin.Unpin()
		m.pin = nil
		pinnedSlices.Delete(m)
	}
}

func (p *PD) registerBytes(mem []byte, access Access) (*MR, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("no memory: %w", errInvalid)
	}
	if err := p.life.addUse(); err != nil {
		return nil, err
	}
	iova := transport.AddressOf(mem)
	if access&ZeroBased != 0 {
		iova = 0
	}
	r, err := p.d.cmd.RegMR(p.handle, mem, iova, access)
	if err != nil {
		p.life.dropUse()
		return nil, err
	}
	m := &MR{pd: p, handle: r.MRHandle, lkey: r.LKey, rkey: r.RKey, mem: mem, iova: iova, id: p.d.nextObjectID()}
	if err := p.d.addObject(m.id, m); err != nil {
		_ = p.d.cmd.DeregMR(r.MRHandle)
		p.life.dropUse()
		return nil, err
	}
	return m, nil
}

// Bytes returns the memory, or nil after the MR has been closed.
func (m *MR) Bytes() []byte {
	m.life.mu.Lock()
	defer m.life.mu.Unlock()
	if m.life.closed {
		return nil
	}
	return m.mem
}

// Len returns the length of the memory in bytes.
func (m *MR) Len() int { return len(m.mem) }

// Addr returns the address of the first byte for work requests and peers.
func (m *MR) Addr() uint64 { return m.iova }

// LKey returns the local key, for work requests of this side.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the remote key, for work requests of peers.
func (m *MR) RKey() uint32 { return m.rkey }

// SGE returns a scatter/gather element for n bytes at an offset. SGE panics if the bytes are not within the memory,
// like a slice expression. SGE also panics if n is 4 GiB or more.
func (m *MR) SGE(off, n int) SGE {
	_ = m.mem[off : off+n : off+n]
	if int64(n) > math.MaxUint32 {
		panic(fmt.Sprintf("verbs: SGE of %d bytes exceeds the maximum of %d", n, uint32(math.MaxUint32)))
	}
	return SGE{Addr: m.iova + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// Remote returns the memory at an offset, for work requests of peers. Remote panics if the offset is not within the
// memory.
func (m *MR) Remote(off int) Remote {
	_ = m.mem[off:]
	return Remote{Addr: m.iova + uint64(off), RKey: m.rkey}
}

// Close ends the registration. After Close has returned, no device accesses the memory. Close returns EBUSY while a
// memory window is bound to the region. Close may sleep. (ibv_dereg_mr)
func (m *MR) Close() error {
	return wrapOpError("end a registration", m.pd.d.name, m.life.closeOnce(m.pd.d, func() error {
		err := ignoreRemovedError(m.pd.d.cmd.DeregMR(m.handle))
		if isErrno(err, syscall.ENOENT) && m.pd.d.isClosed() {
			err = nil // Device.Close has ended the registration
		}
		if err != nil {
			return err
		}
		m.pd.life.dropUse()
		m.pd.d.removeObject(m.id)
		m.unpinSlice()
		if m.home != nil {
			m.home.dropRef()
		}
		return nil
	}))
}

// Buffer is memory for registration, outside the collector's heap. The memory is initially zeroed, and is page-aligned.
type Buffer struct {
	mem []byte

	mu   sync.Mutex
	m    transport.Memory
	refs int
	shut bool // Close was called
}

// Alloc returns a Buffer with one reference, which the caller owns. Alloc may sleep.
func (d *Device) Alloc(size int) (*Buffer, error) {
	fail := func(err error) (*Buffer, error) {
		return nil, wrapOpError(fmt.Sprintf("allocate %d bytes", size), d.name, err)
	}
	if size <= 0 {
		return fail(errInvalid)
	}
	if d.isClosed() {
		return fail(ErrClosed)
	}
	m, err := d.cmd.T.Alloc(size)
	if err != nil {
		return fail(err)
	}
	return &Buffer{m: m, mem: m.Mem[:size:size], refs: 1}, nil
}

// Bytes returns the memory, or nil after the buffer has been closed.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut {
		return nil
	}
	return b.mem
}

func (b *Buffer) addRef() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut {
		return nil, ErrClosed
	}
	b.refs++
	return b.mem, nil
}

func (b *Buffer) dropRef() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refs--; b.refs == 0 {
		b.m.Free()
	}
}

// Close releases the owner's reference. The memory can be reused after the last registration has ended. Close may be
// called again.
func (b *Buffer) Close() error {
	b.mu.Lock()
	shut := b.shut
	b.shut = true
	b.mu.Unlock()
	if !shut {
		b.dropRef()
	}
	return nil
}
