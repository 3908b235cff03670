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

// UserABI is implemented by an [ib.Driver] that has a counterpart in user space. A driver without it has ABI version
// 1 and takes the ioctls of any driver.
type UserABI interface {
	// UserABI is the driver's number in the ioctl form (enum rdma_driver_id) and the version of its private data,
	// which sysfs shows as uverbsN/abi_version (ib_device_ops.driver_id, uverbs_abi_ver).
	UserABI() (driverID, version uint32)
}

// Counters is implemented by an [ib.Driver] that counts what happens; they appear in ports/1/hw_counters of sysfs.
type Counters interface {
	// Stats may sleep.
	Stats() map[string]uint64
}

// ServerOptions are the choices of NewServer.
type ServerOptions struct {
	// CompVectors is how many completion vectors each device has; 0 stands for the number of processors.
	CompVectors int
	// Log gets the rare messages about things that no caller can be told of, with the attributes uid, pid and name of the
	// process that opened the file. nil discards.
	Log *slog.Logger
	// Grace is how long the removal of a device, and the close of a file, wait for calls that are stopped in the memory of
	// a process which does not answer; 0 stands for 2 s.
	Grace time.Duration
	// Kept keeps users charged for event files that their programs keep; nil does not.
	Kept *kept.Keeper
}

const defaultGrace = 2 * time.Second

// Server gives user programs access to the devices of a Core.
type Server struct {
	core   *ib.Core
	opts   ServerOptions
	client ib.Client

	mu       sync.Mutex
	devices  []*Device // by minor number; nil where one is free
	gone     []*Device // that have left zombies
	onChange []func()

	onVerb atomic.Pointer[func(VerbCall) error] // nil: none

	pipes sync.Map // *quota.User to the chan struct{} of pipeGate.user
}

// pipeGate returns the bound of threads at the pipes of a context of a user.
func (s *Server) pipeGate(u *quota.User) *pipeGate {
	c, ok := s.pipes.Load(u)
	if !ok {
		c, _ = s.pipes.LoadOrStore(u, make(chan struct{}, maxUserAtPipes))
	}
	return newPipeGate(c.(chan struct{}))
}

// NewServer makes a server and registers it as a client of core. Close it after the last File. It may sleep.
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
	s.client = ib.Client{Name: "uverbs", Add: s.add, Remove: s.remove}
	if err := core.RegisterClient(&s.client); err != nil {
		return nil, err
	}
	return s, nil
}

// Close takes the devices away from the programs, as if they had been unplugged. Files stay to be closed by those
// who opened them. It may sleep.
func (s *Server) Close() { s.core.UnregisterClient(&s.client) }

// QueuePairUser returns the user who is charged for a queue pair of a device; false if no program has one of that number.
// It does not sleep.
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

// Devices are the present devices in the order of their minor numbers.
func (s *Server) Devices() []*Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.devices), func(d *Device) bool { return d == nil })
}

// OnChange has f called after a device has come, and after one has gone from Devices but before its contexts are
// ended. f may sleep.
func (s *Server) OnChange(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = append(s.onChange, f)
}

func (s *Server) changed() {
	s.mu.Lock()
	fs := slices.Clone(s.onChange)
	s.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// add is the client's Add. (ib_uverbs_add_one)
func (s *Server) add(dev *ib.Device) (any, error) {
	attr, err := dev.QueryDevice()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", dev.Name(), err)
	}
	d := &Device{srv: s, ib: dev, ports: attr.PhysPorts, abiVersion: 1, files: map[*File]struct{}{}}
	if u, ok := ib.As[UserABI](user.Driver(dev)); ok {
		id, version := u.UserABI()
		d.driverID, d.abiVersion, d.checkDriver = uapi.DriverID(id), int(version), true
	}
	if d.methods, err = driverMethods(dev); err != nil {
		return nil, fmt.Errorf("%s: %w", dev.Name(), err)
	}
	if d.sysfs, err = sysfsFiles(dev); err != nil {
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
	s.changed()
	return d, nil
}

// remove is the client's Remove. (ib_uverbs_remove_one)
func (s *Server) remove(_ *ib.Device, data any) {
	d := data.(*Device)
	s.mu.Lock()
	s.devices[d.minor] = nil
	s.gone = append(s.gone, d)
	s.mu.Unlock()
	s.changed()
	d.disassociate()
	s.forget(d)
}

// forget drops a device that has gone when its last zombie has.
func (s *Server) forget(d *Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone && len(d.files) == 0 {
		s.gone = slices.DeleteFunc(s.gone, func(o *Device) bool { return o == d })
	}
}

// Open opens a device by its name, such as uverbs0, for a process. The File owns m. ENODEV if there is no such
// device, what quota.Error says if the user has too many open. (ib_uverbs_open)
func (s *Server) Open(name string, p Process, m Memory) (*File, error) {
	for _, d := range s.Devices() {
		if d.Name() != name {
			continue
		}
		f := newFile(d, p, m)
		if err := f.user.Take(quota.Contexts, 1); err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		if !d.attach(f) {
			f.user.Give(quota.Contexts, 1)
			break
		}
		f.events.swept = f.events.kept.OnRelease(f.events.sweepAll)
		return f, nil
	}
	return nil, fmt.Errorf("open %s: no such device: %w", name, syscall.ENODEV)
}

// Device is a device as programs see it. (struct ib_uverbs_device)
type Device struct {
	srv         *Server
	ib          *ib.Device
	minor       int
	name        string
	ports       int
	driverID    uapi.DriverID
	checkDriver bool // the driver has a number that ioctls must name
	abiVersion  int
	methods     map[methodID]*method // the driver's
	sysfs       map[string]func() (string, error)

	mu    sync.Mutex
	gone  bool // no new files
	files map[*File]struct{}

	xrc xrcDomains

	queuePairs sync.Map // *qpObject by number; XRC targets, which belong to nobody, excepted
}

// Name is the name of the device file, such as uverbs0.
func (d *Device) Name() string { return d.name }

// Minor is the device's number among all, from 0.
func (d *Device) Minor() int { return d.minor }

// IB is the device below.
func (d *Device) IB() *ib.Device { return d.ib }

// Counters are the driver's, nil if it has none.
func (d *Device) Counters() Counters {
	c, _ := ib.As[Counters](user.Driver(d.ib))
	return c
}

// SysfsFiles are the driver's files in sysfs, by the path below /sys/class/infiniband/DEV.
func (d *Device) SysfsFiles() map[string]func() (string, error) { return d.sysfs }

// ABIVersion is the version of the commands, which sysfs shows as infiniband_verbs/abi_version.
func (d *Device) ABIVersion() int { return uapi.ABIVersion }

// DriverID is that of the driver, uapi.DriverUnknown if it has none.
func (d *Device) DriverID() uapi.DriverID { return d.driverID }

// DriverABI is the version of the driver's private data, which sysfs shows as uverbsN/abi_version.
func (d *Device) DriverABI() int { return d.abiVersion }

// usable is nil unless the device is in error, when nothing is made: it is for what the midlayer is not asked about.
func (d *Device) usable() error {
	if d.ib.State() == ib.DeviceError {
		return fmt.Errorf("the device is in error: %w", syscall.EIO)
	}
	return nil
}

func (d *Device) attach(f *File) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return false
	}
	d.files[f] = struct{}{}
	return true
}

func (d *Device) detach(f *File) {
	d.mu.Lock()
	delete(d.files, f)
	gone := d.gone
	d.mu.Unlock()
	if gone {
		d.srv.forget(d)
	}
}

// openFiles are the files that hold something on the device. One that is being closed is among them until it does
// not.
func (d *Device) openFiles() []*File {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := make([]*File, 0, len(d.files))
	for f := range d.files {
		files = append(files, f)
	}
	return files
}

// disassociate makes zombies of the contexts. When it returns, nothing of theirs is on the device, but for those that are
// stopped in the memory of a process which does not answer: all of them together get the grace, and are then abandoned. The
// others do not wait for them. (ib_uverbs_free_hw_resources)
func (d *Device) disassociate() {
	d.mu.Lock()
	d.gone = true
	d.mu.Unlock()
	var ends []*ending
	for _, f := range d.openFiles() {
		if e := f.disassociate(); e != nil {
			ends = append(ends, e)
		}
	}
	expired, stop := d.srv.expiry()
	defer stop()
	for _, e := range ends {
		if !e.wait(expired) {
			e.f.abandon()
		}
	}
}
