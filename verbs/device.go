package verbs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"verbena/uapi"
	"verbena/verbs/internal/cmd"
	"verbena/verbs/internal/transport"
	"verbena/verbs/provider"
	"verbena/verbs/provider/efa"
	"verbena/verbs/provider/rxe"
)

// providers lists the known providers.
var providers = []provider.Provider{rxe.Provider{}, efa.Provider{}}

// DeviceInfo describes a device that can be opened.
type DeviceInfo struct {
	Name string // such as rxe0
	// Path identifies the device for users, for example by its device file.
	Path string

	driver uapi.DriverID
	abi    int
	open   func() (transport.Transport, error)
}

// Entry describes a device to [NewDeviceInfo].
type Entry struct {
	Name, Path string
	Driver     uapi.DriverID
	ABI        int // version of the driver-private part of the user ABI
	Open       func() (transport.Transport, error)
}

// NewDeviceInfo is for subpackages with devices outside /dev/infiniband.
func NewDeviceInfo(e Entry) DeviceInfo {
	return DeviceInfo{Name: e.Name, Path: e.Path, driver: e.Driver, abi: e.ABI, open: e.Open}
}

// Devices returns the devices of the kernel or of the service under which the program runs, sorted by name. Devices
// without a provider are omitted. The list may be empty. (ibv_get_device_list)
func Devices() ([]DeviceInfo, error) {
	return readDevices("/sys/class/infiniband_verbs", "/dev/infiniband")
}

func readDevices(class, nodes string) ([]DeviceInfo, error) {
	entries, err := os.ReadDir(class)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("verbs: list devices: %w", err)
	}
	var list []DeviceInfo
	for _, e := range entries {
		dir := filepath.Join(class, e.Name())
		name, err := readAttribute(dir, "ibdev")
		if err != nil {
			continue // unknown abi_version, or the device is being removed
		}
		text, err := readAttribute(dir, "abi_version")
		if err != nil {
			continue
		}
		abi, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		path := filepath.Join(nodes, e.Name())
		d := DeviceInfo{Name: name, Path: path, abi: abi,
			open: func() (transport.Transport, error) { return transport.Open(path) }}
		if driver, err := os.Readlink(filepath.Join(dir, "device", "driver")); err == nil && filepath.Base(driver) == "efa" {
			d.driver = uapi.DriverEFA
		}
		if d.provider() != nil {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b DeviceInfo) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

func readAttribute(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b)), err
}

func (i DeviceInfo) provider() provider.Provider {
	for _, p := range providers {
		if p.Matches(provider.Info{Name: i.Name, Driver: i.driver, ABI: i.abi}) {
			return p
		}
	}
	return nil
}

// Open opens a device by name. "" means the first device. Open returns ErrNoDevice if the device does not exist. Open
// may sleep. (ibv_open_device)
func Open(name string) (*Device, error) {
	list, err := Devices()
	if err != nil {
		return nil, err
	}
	for _, i := range list {
		if name == "" || i.Name == name {
			return i.Open()
		}
	}
	if name == "" {
		return nil, fmt.Errorf("%w: no RDMA device was found; run the program with `verbena run` to provide one", ErrNoDevice)
	}
	return nil, fmt.Errorf("%w: %s", ErrNoDevice, name)
}

// Open opens the device. Open may sleep.
func (i DeviceInfo) Open() (*Device, error) {
	p := i.provider()
	if p == nil {
		return nil, fmt.Errorf("%w: no provider knows %s", ErrNoDevice, i.Name)
	}
	t, err := i.open()
	if err != nil {
		return nil, fmt.Errorf("verbs: open %s: %w", i.Name, err)
	}
	d := &Device{name: i.Name, p: p, cmd: &cmd.Device{T: t}}
	d.objects.byID = map[uint64]abandoner{}
	resp := make([]byte, provider.ContextResponse)
	events, _, err := d.cmd.GetContext(resp)
	if err == nil {
		d.events = events
		if o, ok := p.(provider.Opener); ok {
			if d.p, err = o.Open(d.cmd, resp); err != nil {
				_ = events.Close()
			}
		}
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("verbs: open %s: %w", i.Name, err)
	}
	return d, nil
}

// Device is an open device and corresponds to a user context. (struct ibv_context)
type Device struct {
	name   string
	p      provider.Provider
	cmd    *cmd.Device
	events *transport.Events

	objects struct {
		sync.Mutex
		last   uint64
		byID   map[uint64]abandoner // by the object's number in events
		closed bool
	}
}

// abandoner is an object that asynchronous events and completion events name.
type abandoner interface{ abandon() }

// Name returns the name of the device, such as rxe0.
func (d *Device) Name() string { return d.name }

// Provider returns the name of the device's provider.
func (d *Device) Provider() string { return d.p.Name() }

// nextObjectID returns a new number for an object.
func (d *Device) nextObjectID() uint64 {
	d.objects.Lock()
	defer d.objects.Unlock()
	d.objects.last++
	return d.objects.last
}

// addObject registers a complete object under its number. From then on events may name the object, and Close ends it.
// addObject returns ErrClosed if Close was called.
func (d *Device) addObject(id uint64, o abandoner) error {
	d.objects.Lock()
	defer d.objects.Unlock()
	if d.objects.closed {
		return ErrClosed
	}
	d.objects.byID[id] = o
	return nil
}

// isClosed reports whether Close was called.
func (d *Device) isClosed() bool {
	d.objects.Lock()
	defer d.objects.Unlock()
	return d.objects.closed
}

func (d *Device) removeObject(id uint64) {
	d.objects.Lock()
	defer d.objects.Unlock()
	delete(d.objects.byID, id)
}

func (d *Device) findObject(id uint64) abandoner {
	d.objects.Lock()
	defer d.objects.Unlock()
	return d.objects.byID[id]
}

// Close closes the device. All objects on the device end, and waiting goroutines return. Close may be called again, and
// may sleep. (ibv_close_device)
func (d *Device) Close() error {
	l := &d.objects
	l.Lock()
	closed := l.closed
	l.closed = true
	left := l.byID
	l.byID = map[uint64]abandoner{}
	l.Unlock()
	if closed {
		return nil
	}
	_ = d.events.Close()
	for _, o := range left {
		if _, ok := o.(*MR); !ok {
			o.abandon() // mappings of the object's queues would keep the device open
		}
	}
	// A service detects the close of a file with a delay. The registrations and the charges of the program must end
	// earlier, because memory may be reused after its registration has been closed.
	for _, o := range left {
		if q, ok := o.(*QP); ok && q.Close() != nil {
			_ = q.life.callWhileOpen(func() error {
				return q.modifyState(uapi.ModifyQP{QPHandle: q.handle, AttrMask: AttrState, QPState: Reset})
			})
		}
	}
	for _, o := range left {
		if m, ok := o.(*MR); ok {
			_ = m.life.callWhileOpen(func() error { return d.cmd.DeregMR(m.handle) })
			m.abandon()
		}
	}
	return wrapOpError("close", d.name, d.cmd.T.Close())
}

// EventType is a kind of asynchronous event (enum ibv_event_type).
type EventType = uapi.EventType

// The next constants are the asynchronous events.
const (
	EventCQError        = uapi.EventCQErr
	EventQPFatal        = uapi.EventQPFatal
	EventQPRequestError = uapi.EventQPReqErr
	EventQPAccessError  = uapi.EventQPAccessErr
	EventEstablished    = uapi.EventCommEst
	EventSQDrained      = uapi.EventSQDrained
	EventDeviceFatal    = uapi.EventDeviceFatal
	EventPortActive     = uapi.EventPortActive
	EventPortError      = uapi.EventPortErr
	EventSRQError       = uapi.EventSRQErr
	EventSRQLimit       = uapi.EventSRQLimitReached
	EventLastWQE        = uapi.EventQPLastWQEReached
	EventGIDChange      = uapi.EventGIDChange
)

// Event is an asynchronous event of the device or of one object. The field for the kind of object contains the object.
type Event struct {
	Type EventType
	Port uint8 // for events of a port
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
}

// NextEvent waits for the next asynchronous event. The error is the cause of ctx, or ErrClosed. After a device was
// removed and its last event, EventDeviceFatal, has been read, the error is io.EOF, or wraps EIO. (ibv_get_async_event)
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	for {
		b := make([]byte, uapi.SizeOf[uapi.AsyncEventDesc]())
		n, err := d.events.Read(ctx, b)
		if err != nil {
			return Event{}, err
		}
		r, ok := uapi.Decode[uapi.AsyncEventDesc](b[:n])
		if !ok {
			continue
		}
		e := Event{Type: r.EventType}
		switch r.EventType {
		case uapi.EventDeviceFatal, uapi.EventDeviceSpeedChange:
		case uapi.EventPortActive, uapi.EventPortErr, uapi.EventLIDChange, uapi.EventPKeyChange, uapi.EventSMChange,
			uapi.EventClientReregister, uapi.EventGIDChange:
			e.Port = uint8(r.Element)
		default:
			switch o := d.findObject(r.Element).(type) {
			case *QP:
				e.QP = o
			case *CQ:
				e.CQ = o
			case *SRQ:
				e.SRQ = o
			default:
				continue // the object of the event has been closed
			}
		}
		return e, nil
	}
}
