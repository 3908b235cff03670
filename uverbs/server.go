package uverbs

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/uapi"
)

// userABI is implemented by an [ib.Driver] that has a provider in user space. A driver without userABI has ABI version
// 1 and accepts the ioctls of any driver.
type userABI interface {
	// UserABI returns the number of the driver in the ioctl form (enum rdma_driver_id) and the version of the driver's
	// private data. sysfs shows the version as uverbsN/abi_version (ib_device_ops.driver_id, uverbs_abi_ver).
	UserABI() (driverID, version uint32)
}

// Counters is implemented by an [ib.Driver] with counters. sysfs shows the counters in ports/1/hw_counters.
type Counters interface {
	// Stats returns the values by name. Stats may sleep.
	Stats() map[string]uint64
}

// ServerOptions holds the options of NewServer.
type ServerOptions struct {
	// CompVectors is the number of completion vectors of each device. 0 means the number of processors.
	CompVectors int
	// Log receives the rare messages that cannot be returned to a caller. The attributes are uid, pid and name of the
	// process that opened the file. A nil Log discards the messages.
	Log *slog.Logger
	// Grace limits the wait for calls that are blocked on the memory of an unresponsive process, at the removal of a
	// device and the close of a file. 0 means 2 s.
	Grace time.Duration
	// Kept continues to charge users for event files that their programs have not closed. nil means no charge.
	Kept *kept.Keeper
}

const defaultGrace = 2 * time.Second

// Server gives user programs access to the devices of a Core.
type Server struct {
	core   *ib.Core
	opts   ServerOptions
	client ib.Client

	mu       sync.Mutex
	devices  []*Device // by minor number; nil entries are free
	gone     []*Device // removed devices that still have zombies
	onChange []func()

	onVerb atomic.Pointer[func(VerbCall) error] // nil: none

	pipes sync.Map // maps a *quota.User to the chan struct{} of newUserPipeGate.user
}

// newUserPipeGate returns the limit of threads in calls on the pipes of a user's context.
func (s *Server) newUserPipeGate(u *quota.User) *pipeGate {
	c, ok := s.pipes.Load(u)
	if !ok {
		c, _ = s.pipes.LoadOrStore(u, make(chan struct{}, maxUserAtPipes))
	}
	return newPipeGate(c.(chan struct{}))
}

// NewServer creates a server and registers it as a client of core. The caller must call Close after the last File has
// been closed. NewServer may sleep.
func NewServer(core *ib.Core, opts ServerOptions) (*Server, error) {
	if opts.CompVectors <= 0 {
		opts.CompVectors = runtime.NumCPU()
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Grace <= 0 {
		opts.Grace = defaultGrace
	}
	s := &Server{core: core, opts: opts}
	s.client = ib.Client{Name: "uverbs", Add: s.addDevice, Remove: s.removeDevice}
	if err := core.RegisterClient(&s.client); err != nil {
		return nil, err
	}
	return s, nil
}

// Close removes the devices from the programs, as if the devices had been unplugged. Open files must still be closed by
// their owners. Close may sleep.
func (s *Server) Close() { s.core.UnregisterClient(&s.client) }

// QueuePairUser returns the user who is charged for a queue pair of a device. QueuePairUser returns false if no program
// has a queue pair with this number. QueuePairUser does not sleep.
func (s *Server) QueuePairUser(dev *ib.Device, num uint32) (*quota.User, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devices {
		if d != nil && d.ib.Same(dev) {
			if o, ok := d.queuePairs.Load(num); ok {
				return o.(*qpObject).f.user, true
			}
		}
	}
	return nil, false
}

// Devices returns the present devices in the order of their minor numbers.
func (s *Server) Devices() []*Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.devices), func(d *Device) bool { return d == nil })
}

// OnChange sets a function that is called after a device has been added. The function is also called after a device has
// been removed from Devices, before its contexts are ended. f may sleep.
func (s *Server) OnChange(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = append(s.onChange, f)
}

func (s *Server) notifyChange() {
	s.mu.Lock()
	fs := slices.Clone(s.onChange)
	s.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// addDevice implements Client.Add. (ib_uverbs_add_one)
func (s *Server) addDevice(dev *ib.Device) (any, error) {
	attr, err := dev.QueryDevice()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", dev.Name(), err)
	}
	d := &Device{srv: s, ib: dev, ports: attr.PhysPorts, abiVersion: 1, files: map[*File]struct{}{}}
	if u, ok := ib.As[userABI](userOps.Driver(dev)); ok {
		id, version := u.UserABI()
		d.driverID, d.abiVersion, d.checkDriver = uapi.DriverID(id), int(version), true
	}
	if d.methods, err = checkedDriverMethods(dev); err != nil {
		return nil, fmt.Errorf("%s: %w", dev.Name(), err)
	}
	if d.sysfs, err = checkedSysfsFiles(dev); err != nil {
		return nil, fmt.Errorf("%s: %w", dev.Name(), err)
	}
	s.mu.Lock()
	if d.minor = slices.Index(s.devices, nil); d.minor < 0 {
		d.minor = len(s.devices)
		s.devices = append(s.devices, nil)
	}
	d.name = fmt.Sprintf("uverbs%d", d.minor)
	s.devices[d.minor] = d
	s.mu.Unlock()
	s.notifyChange()
	return d, nil
}

// removeDevice implements Client.Remove. (ib_uverbs_remove_one)
func (s *Server) removeDevice(_ *ib.Device, data any) {
	d := data.(*Device)
	s.mu.Lock()
	s.devices[d.minor] = nil
	s.gone = append(s.gone, d)
	s.mu.Unlock()
	s.notifyChange()
	d.disassociate()
	s.forgetDevice(d)
}

// forgetDevice removes a removed device from the list after the close of its last zombie.
func (s *Server) forgetDevice(d *Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone && len(d.files) == 0 {
		s.gone = slices.DeleteFunc(s.gone, func(o *Device) bool { return o == d })
	}
}

// Open opens a device by its name, such as uverbs0, for a process. The File owns m. Open returns ENODEV if the device
// does not exist, or the error of quota.Error if the user has too many open files. (ib_uverbs_open)
func (s *Server) Open(name string, p Process, m Memory) (*File, error) {
	for _, d := range s.Devices() {
		if d.Name() != name {
			continue
		}
		f := newFile(d, p, m)
		if err := f.user.Charge(quota.Contexts, 1); err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		if !d.attachFile(f) {
			f.user.Release(quota.Contexts, 1)
			break
		}
		f.events.swept = f.events.kept.OnRelease(f.events.closeUnusedFiles)
		return f, nil
	}
	return nil, fmt.Errorf("open %s: no such device: %w", name, syscall.ENODEV)
}

// Device is the view that programs have of a device. (struct ib_uverbs_device)
type Device struct {
	srv         *Server
	ib          *ib.Device
	minor       int
	name        string
	ports       int
	driverID    uapi.DriverID
	checkDriver bool // ioctls must contain the driver's number
	abiVersion  int
	methods     map[methodID]*method // methods of the driver, by ID
	sysfs       map[string]func() (string, error)

	mu    sync.Mutex
	gone  bool // no new files can be opened
	files map[*File]struct{}

	xrc xrcDomains

	queuePairs sync.Map // maps a number to a *qpObject; excludes XRC targets, which are shared
}

// Name returns the name of the device file, such as uverbs0.
func (d *Device) Name() string { return d.name }

// Minor returns the number of the device, counting from 0.
func (d *Device) Minor() int { return d.minor }

// IB returns the device of the midlayer.
func (d *Device) IB() *ib.Device { return d.ib }

// Counters returns the counters of the driver, or nil.
func (d *Device) Counters() Counters {
	c, _ := ib.As[Counters](userOps.Driver(d.ib))
	return c
}

// SysfsFiles returns the driver's files in sysfs, by the path below /sys/class/infiniband/DEV.
func (d *Device) SysfsFiles() map[string]func() (string, error) { return d.sysfs }

// ABIVersion returns the version of the commands, shown in sysfs as infiniband_verbs/abi_version.
func (d *Device) ABIVersion() int { return uapi.ABIVersion }

// DriverID returns the number of the driver, or uapi.DriverUnknown.
func (d *Device) DriverID() uapi.DriverID { return d.driverID }

// DriverABI returns the version of the driver's private data, shown in sysfs as uverbsN/abi_version.
func (d *Device) DriverABI() int { return d.abiVersion }

// StoreDoorbells reports whether programs post by stores to memory, without a call.
func (d *Device) StoreDoorbells() bool {
	s, ok := ib.As[interface{ StoreDoorbells() bool }](userOps.Driver(d.ib))
	return ok && s.StoreDoorbells()
}

// checkNotInError returns nil unless the device is in the error state. checkNotInError is for calls that do not call
// the midlayer.
func (d *Device) checkNotInError() error {
	if d.ib.State() == ib.DeviceError {
		return fmt.Errorf("the device is in the error state: %w", syscall.EIO)
	}
	return nil
}

func (d *Device) attachFile(f *File) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return false
	}
	d.files[f] = struct{}{}
	return true
}

func (d *Device) detachFile(f *File) {
	d.mu.Lock()
	delete(d.files, f)
	gone := d.gone
	d.mu.Unlock()
	if gone {
		d.srv.forgetDevice(d)
	}
}

// attachedFiles returns the files with objects on the device, including files that are being closed and still have
// objects.
func (d *Device) attachedFiles() []*File {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := make([]*File, 0, len(d.files))
	for f := range d.files {
		files = append(files, f)
	}
	return files
}

// disassociate makes the contexts zombies. When it returns, the contexts have no objects on the device. Contexts
// blocked on the memory of an unresponsive process are an exception. All blocked contexts share one grace period and
// are abandoned afterwards. The other contexts do not wait for blocked contexts. (ib_uverbs_free_hw_resources)
func (d *Device) disassociate() {
	d.mu.Lock()
	d.gone = true
	d.mu.Unlock()
	var ends []*contextEnd
	for _, f := range d.attachedFiles() {
		if e := f.disassociate(); e != nil {
			ends = append(ends, e)
		}
	}
	expired, stop := d.srv.startGraceTimer()
	defer stop()
	for _, e := range ends {
		if !e.wait(expired) {
			e.f.abandonContext()
		}
	}
}
