package ib

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/testutil"
)

// clientRecorder is a client that records the calls of its functions.
type clientRecorder struct {
	mu  sync.Mutex
	log []string
}

func (r *clientRecorder) newClient(name string) *Client {
	note := func(what string, d *Device) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.log = append(r.log, what+name+d.Name())
	}
	return &Client{
		Name:   name,
		Add:    func(d *Device) (any, error) { note("+", d); return name + d.Name(), nil },
		Remove: func(d *Device, data any) { note("-", d) },
	}
}

func (r *clientRecorder) String() string { return strings.Join(r.log, " ") }

// Each line is a test case: clients A, B, C and devices 1, 2, 3 are registered (+) and unregistered (-), and the rest
// lists the expected calls of Add and Remove.
func TestHotPlugCallOrder(t *testing.T) {
	for _, test := range []struct{ history, want string }{
		{"+A +B +1 -1", "+A1 +B1 -B1 -A1"},
		{"+1 +A +B -1", "+A1 +B1 -B1 -A1"},
		{"+A +1 +B -1", "+A1 +B1 -B1 -A1"},
		{"+B +1 +A -1", "+B1 +A1 -A1 -B1"},
		{"+A +1 +2 -A", "+A1 +A2 -A2 -A1"},
		{"+1 +2 +A -1 -A", "+A1 +A2 -A1 -A2"},
		{"+A +1 -A +B +A -1", "+A1 -A1 +B1 +A1 -A1 -B1"},
		{"+A +1 -1 +1 -1", "+A1 -A1 +A1 -A1"},
		{"+1 -1 +A -A", ""},
		{"+A +1 +B +2 +C -A -2 -B -1", "+A1 +B1 +A2 +B2 +C1 +C2 -A2 -A1 -C2 -B2 -B1 -C1"},
	} {
		t.Run(test.history, func(t *testing.T) {
			core, rec := &Core{}, &clientRecorder{}
			clients, devices := map[string]*Client{}, map[string]*Device{}
			for _, step := range strings.Fields(test.history) {
				come, name := step[0] == '+', step[1:]
				switch isDevice := name >= "1" && name <= "9"; {
				case isDevice && come:
					devices[name], _ = newDevice(name)
					must(t, core.Register(&devices[name].handle))
				case isDevice:
					must(t, core.Unregister(&devices[name].handle))
				case come:
					if clients[name] == nil {
						clients[name] = rec.newClient(name)
					}
					must(t, core.RegisterClient(clients[name]))
				default:
					core.UnregisterClient(clients[name])
				}
			}
			if got := rec.String(); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestRegisterRejectsBadArguments(t *testing.T) {
	core := &Core{}
	d, _ := newDevice("fake0")
	if err := core.Unregister(&d.handle); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Unregister before Register: got %v, want ENODEV", err)
	}
	must(t, core.Register(&d.handle))
	if err := core.Register(&d.handle); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("second Register of a device: got %v, want EINVAL", err)
	}
	twin, _ := newDevice("fake0")
	if err := core.Register(&twin.handle); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("Register of a second device with the same name: got %v, want EEXIST", err)
	}
	if core.Device("fake0") != d || core.Device("fake1") != nil || !slices.Equal(core.Devices(), []*Device{d}) {
		t.Errorf("devices: got %v, want only fake0", core.Devices())
	}
	cl := (&clientRecorder{}).newClient("A")
	must(t, core.RegisterClient(cl))
	if err := core.RegisterClient(cl); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("second RegisterClient of a client: got %v, want EEXIST", err)
	}
	must(t, core.Unregister(&d.handle))
	if err := core.Unregister(&d.handle); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("second Unregister of a device: got %v, want ENODEV", err)
	}
	if err := core.Register(&d.handle); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Register of an unregistered device: got %v, want EINVAL", err)
	}
	must(t, core.Register(&twin.handle))
	core.UnregisterClient((&clientRecorder{}).newClient("never registered"))
}

func TestFailedAddLeavesClientDetached(t *testing.T) {
	core, rec := &Core{}, &clientRecorder{}
	refuser := rec.newClient("A")
	refuser.Add = func(*Device) (any, error) { return nil, errors.New("no, thanks") }
	must(t, core.RegisterClient(refuser))
	must(t, core.RegisterClient(rec.newClient("B")))
	var log []string
	d := NewDevice("1", &fakeDriver{}, func(format string,
		args ...any) {
		log = append(log, fmt.Sprintf(format, args...))
	})
	must(t, core.Register(d))
	if d.dev.Attached(refuser) {
		t.Error("Attached after a failed Add: got true, want false")
	}
	must(t, core.Unregister(d))
	if got := rec.String(); got != "+B1 -B1" {
		t.Errorf("got %s", got)
	}
	if len(log) != 1 || !strings.Contains(log[0], "no, thanks") {
		t.Errorf("log: got %q, want 1 line with \"no, thanks\"", log)
	}
}

// TestDeviceUsableFromAddToRemove checks that the device is usable from the start of Add to the end of Remove, and that
// Remove receives the data of Add.
func TestDeviceUsableFromAddToRemove(t *testing.T) {
	core := &Core{}
	var state DeviceState
	var recorded *Client
	cl := &Client{
		Name: "A",
		Add: func(d *Device) (any, error) {
			return d.AllocPD()
		},
		Remove: func(d *Device, data any) {
			state = d.State()
			if d.ClientData(recorded) != nil {
				t.Error("ClientData during Remove: got data, want nil")
			}
			cq, err := d.CreateCQ(CQInit{Entries: 1})
			if err := errors.Join(err, cq.Destroy(), data.(*PD).Dealloc()); err != nil {
				t.Error(err)
			}
		},
	}
	recorded = cl
	must(t, core.RegisterClient(cl))
	d, _ := newDevice("1")
	if d.ClientData(cl) != nil {
		t.Error("ClientData before registration: got data, want nil")
	}
	must(t, core.Register(&d.handle))
	if _, ok := d.ClientData(cl).(*PD); !ok || d.ClientData(&Client{}) != nil {
		t.Errorf("ClientData: got %v, and %v for another client, want a *PD and nil",
			d.ClientData(cl), d.ClientData(&Client{}))
	}
	must(t, core.Unregister(&d.handle))
	if state != DeviceActive {
		t.Errorf("device state in Remove: got %v, want DeviceActive", state)
	}
	if d.State() != DeviceGone {
		t.Errorf("device state: got %v", d.State())
	}
	if _, err := d.AllocPD(); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("AllocPD after unregistration: got %v, want ENODEV", err)
	}
}

func TestUnregisterNamesRemainingObjects(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	err := b.core.Unregister(&b.dev.handle)
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "1 PD, 1 CQ, 1 QP") {
		t.Errorf("got %v", err)
	}
	if b.dev.State() != DeviceGone {
		t.Errorf("device state: got %v", b.dev.State())
	}
}

// TestUnregisterWaits checks each call that unregisters a device or a client. The call must return only after Add and
// Remove have returned, even if another call has called them.
func TestUnregisterWaits(t *testing.T) {
	for _, test := range []struct {
		name  string
		inAdd bool // the client blocks in Add, not in Remove
		end   []string
	}{
		{"device during Add", true, []string{"device"}},
		{"client during Add", true, []string{"client"}},
		{"both during Add", true, []string{"device", "client"}},
		{"device during Remove by client", false, []string{"client", "device"}},
		{"client during Remove by device", false, []string{"device", "client"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core := &Core{}
				release := make(chan struct{})
				var adds, removes int
				cl := &Client{
					Name: "A",
					Add: func(*Device) (any, error) {
						adds++
						if test.inAdd {
							<-release
						}
						return nil, nil
					},
					Remove: func(*Device, any) {
						removes++
						if !test.inAdd {
							<-release
						}
					},
				}
				must(t, core.RegisterClient(cl))
				d, _ := newDevice("1")
				go core.Register(&d.handle)
				synctest.Wait()

				ended := make(chan string, 2)
				for _, what := range test.end {
					go func() {
						if what == "device" {
							if err := core.Unregister(&d.handle); err != nil {
								t.Error(err)
							}
						} else {
							core.UnregisterClient(cl)
						}
						ended <- what
					}()
					synctest.Wait()
				}
				if len(ended) != 0 {
					t.Fatalf("unregistration of %s: returned with a busy client, want it to wait", <-ended)
				}
				close(release)
				synctest.Wait()
				if len(ended) != len(test.end) {
					t.Errorf("returned calls: got %d, want %d", len(ended), len(test.end))
				}
				if adds != 1 || removes != 1 {
					t.Errorf("calls: got %d of Add and %d of Remove, want 1 of each", adds, removes)
				}
			})
		})
	}
}

// TestConcurrentHotPlugPairsAddAndRemove registers and unregisters devices and clients concurrently and in any order.
// For each pair of client and device, Add and Remove must alternate. In the end no client may remain on a device.
func TestConcurrentHotPlugPairsAddAndRemove(t *testing.T) {
	const clients, devices, rounds = 4, 4, 40
	core := &Core{}
	type pair struct{ client, device int }
	var mu sync.Mutex
	present := map[pair]bool{}

	var wg sync.WaitGroup
	pause := func(r *rand.Rand) { testutil.PauseRandomly(r, 50*time.Microsecond) }
	for i := range clients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			number := func(d *Device) int { return int(d.Name()[0] - '0') }
			turn := func(d *Device, was bool) {
				mu.Lock()
				defer mu.Unlock()
				k := pair{i, number(d)}
				if present[k] != was {
					t.Errorf("client %d, device %d: got attached %v, want %v", k.client, k.device, present[k], was)
				}
				present[k] = !was
			}
			for range rounds {
				cl := &Client{
					Name: fmt.Sprint("client", i),
					Add: func(d *Device) (any, error) {
						turn(d, false)
						return d.AllocPD()
					},
					Remove: func(d *Device, data any) {
						if err := data.(*PD).Dealloc(); err != nil {
							t.Error(err)
						}
						turn(d, true)
					},
				}
				if err := core.RegisterClient(cl); err != nil {
					t.Error(err)
				}
				pause(r)
				core.UnregisterClient(cl)
				mu.Lock()
				for k, here := range present {
					if k.client == i && here {
						t.Errorf("client %d: still attached to device %d after unregistration, want it detached",
							i, k.device)
					}
				}
				mu.Unlock()
			}
		})
	}
	for i := range devices {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(i)))
			for range rounds {
				d, _ := newDevice(fmt.Sprint(i))
				if err := core.Register(&d.handle); err != nil {
					t.Error(err)
				}
				pause(r)
				if err := core.Unregister(&d.handle); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(core.Devices()) != 0 {
		t.Errorf("remaining devices: got %v, want none", core.Devices())
	}
}

// TestClientPanicDoesNotBlockOthers checks that a panic in Add or Remove of a client does not block other clients.
func TestClientPanicDoesNotBlockOthers(t *testing.T) {
	for _, inAdd := range []bool{true, false} {
		core := &Core{}
		boom := func(here bool) {
			if here {
				panic("boom")
			}
		}
		must(t, core.RegisterClient(&Client{
			Name:   "bomb",
			Add:    func(*Device) (any, error) { boom(inAdd); return nil, nil },
			Remove: func(*Device, any) { boom(!inAdd) },
		}))
		d, _ := newDevice("fake0")
		panics := func(f func() error) (r any) {
			defer func() { r = recover() }()
			must(t, f())
			return nil
		}
		first := panics(func() error { return core.Register(&d.handle) })
		second := panics(func() error { return core.Unregister(&d.handle) })
		if (first != nil) != inAdd || (second != nil) == inAdd {
			t.Errorf("panic in Add %v: got %v from Register and %v from Unregister, want a panic in one of them",
				inAdd, first, second)
		}
		if core.Device("other") != nil {
			t.Error("Device of an unregistered name: got a device, want nil")
		}
	}
}

// TestInsideAtUnregister checks a call that creates an object during Unregister. The call must fail and destroy the
// object.
func TestInsideAtUnregister(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	inside, release := make(chan int), make(chan int)
	b.drv.fail = func(what string) error {
		if what == "alloc pd" {
			close(inside)
			<-release
		}
		return nil
	}
	done := make(chan error)
	go func() {
		_, err := b.dev.AllocPD()
		done <- err
	}()
	<-inside
	must(t, errors.Join(b.qp.Destroy(), b.cq.Destroy(), b.pd.Dealloc()))
	calls := b.drv.calls.Load()
	must(t, b.core.Unregister(&b.dev.handle))
	close(release)
	wantErrno(t, "AllocPD", <-done, syscall.ENODEV)
	if n := b.drv.calls.Load() - calls; n != 1 || b.dev.Objects().String() != "" {
		t.Errorf("object created during Unregister: got %d destroy calls and objects %v, want 1 and none",
			n, b.dev.Objects())
	}
}
