package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/cgroup"
	"verbena/internal/confine"
	"verbena/internal/ctl"
	"verbena/internal/kept"
	"verbena/internal/principal"
	"verbena/internal/privilege"
	"verbena/internal/quota"
	"verbena/internal/rights"
	"verbena/netdev"
	"verbena/rdmacm"
	"verbena/rdmacm/ucma"
	"verbena/remote"
	"verbena/supervisor"
	"verbena/uverbs"
	"verbena/uverbs/poller"
)

// Options configure a service. With Drivers alone it makes the default device and never ends by itself.
type Options struct {
	// Drivers make the devices, of the names that begin with their types. There is at least one. They are this service's
	// alone.
	Drivers []driver.Driver
	// Links are the devices to make; nil: one of the first driver, such as rxe0, on the host's first usable address.
	Links []ctl.LinkSpec
	// Wire sends every packet through a UDP socket, also between devices of this service.
	Wire bool
	// NoProbe lets no device send anything again before the timeout that a program has asked for.
	NoProbe bool
	// Doorbells is which unmodified programs ring without a trap.
	Doorbells supervisor.Doorbells
	// NoLoopback has 127.0.0.1 and ::1 stand for no device, unless one has the address.
	NoLoopback bool
	// Node is the owner and mode of the device files; the zero value: root's, for all users.
	Node supervisor.Node
	// AskLaunchers makes the service reach programs through their launchers, as where Yama restricts it.
	AskLaunchers bool
	// Seed makes what is random repeatable.
	Seed uint64
	// Idle ends Serve when no program has been attached for so long, and no links or faults were configured; 0: never.
	Idle time.Duration
	// OnDemand: a client has started the service, not a user. While it is not in use it yields to one that a user
	// starts.
	OnDemand bool
	// Managers are user ids that may manage the service beside those of package principal.
	Managers []int
	// Limits are what users may hold; nil: DefaultLimits of a service that is not shared.
	Limits *quota.Limits
	// Confine gives up for good what a service needs no longer once it has begun; see package privilege. It is the whole
	// process's, so that it is not for programs that do something else as well.
	Confine bool
	// Interfaces are what the devices follow; nil: the interfaces of this network namespace.
	Interfaces Interfaces
	Log        *slog.Logger
}

// CloseTimeout bounds Close.
const CloseTimeout = ctl.EndTimeout

// Service owns devices and supervises programs.
type Service struct {
	opts       Options
	log        *slog.Logger
	debugLog   *debugQueue // nil: Options.Log was
	dir        *runDir
	core       *ib.Core
	made       atomic.Uint64 // devices, so that each has random numbers of its own
	faultIDs   atomic.Int64
	uverbs     *uverbs.Server
	cm         *rdmacm.Manager
	cmServer   *ucma.Server
	verbFaults verbFaults
	guests     *supervisor.Supervisor
	remote     *remote.Server
	files      sync.WaitGroup // of remote that are open
	quota      *quota.Ledger
	admissions admissions
	spare      spare     // descriptors for managers
	requests   userCount // that are being answered
	unheard    userCount // refused clients that have not read why
	authority  *principal.Authority
	rights     rights.Queues // descriptors that users have sent
	kept       *kept.Keeper  // what users' programs keep
	refusing   chan struct{} // refused clients that are waited for
	stop       context.CancelFunc
	ended      context.Context // done when the service is to stop
	recorders  sync.WaitGroup  // captures that go on
	interfaces Interfaces      // nil: nothing to follow
	follower   sync.WaitGroup

	requestTimeout, closeTimeout time.Duration

	// mu is held across nothing that a program, whose memory may not answer, can hold up: no reset, removal or change of
	// addresses of a device, and no look at contexts.
	mu         sync.Mutex
	links      []*rdmaLink
	names      map[string]bool // of links that are being made
	making     sync.WaitGroup  // of them; it grows with mu held, until the service ends
	recordings map[*recording]struct{}
	configured bool // links were changed by hand, and would be lost by ending

	programs struct {
		sync.Mutex
		n        int
		yielded  bool      // no program may attach any more
		since    time.Time // of n being 0
		attached map[*net.UnixConn]struct{}
	}

	connections struct {
		sync.Mutex
		all map[*net.UnixConn]struct{}
	}
}

// New makes the devices, and whatever programs need to see them.
func New(opts Options) (_ *Service, err error) {
	if len(opts.Drivers) == 0 {
		return nil, fmt.Errorf("a service without drivers: %w", syscall.EINVAL)
	}
	m := thisMachine() // before the process confines itself
	limits := m.limits(false)
	if opts.Limits != nil {
		limits = *opts.Limits
	}
	if err := m.checkRingBytes(limits[quota.RingBytes], opts.Drivers); err != nil {
		return nil, err
	}
	s := &Service{opts: opts, log: slog.New(slog.DiscardHandler), core: &ib.Core{},
		names: map[string]bool{}, recordings: map[*recording]struct{}{}, requestTimeout: requestTimeout, closeTimeout: CloseTimeout,
		refusing: make(chan struct{}, maxRefusing)}
	s.programs.attached = map[*net.UnixConn]struct{}{}
	if opts.Log != nil {
		s.log, s.debugLog = limitLog(opts.Log)
		go s.debugLog.run()
	}
	overflow := -1
	if m := ctl.IDs(); !m.All {
		overflow = m.Overflow
	}
	if s.authority, err = principal.New(opts.Managers, overflow); err != nil {
		return nil, err
	}
	s.quota = quota.New(limits)
	refused := make(refusals, 16)
	s.quota.OnRefusal(refused.add)
	s.kept = kept.New(s.log)
	s.quota.OnShort(s.kept.Release)
	raiseThreadLimit()
	if opts.Confine { // the process is the service's alone
		m.limitHeap(limits)
	}
	if m.cgroup != (cgroup.Limits{}) {
		s.log.Info("the cgroup limits what users may hold", "memory", m.cgroup.Memory, "tasks", m.cgroup.Tasks)
	}
	s.ended, s.stop = context.WithCancel(context.Background())
	s.programs.since = time.Now()
	go s.logRefusals(refused)
	if s.interfaces = opts.Interfaces; s.interfaces == nil {
		// Before the devices are made, so that no change is missed.
		if w, err := netdev.Watch(); err != nil {
			s.log.Warn("devices will not follow their interfaces", "err", err)
		} else {
			s.interfaces = hostInterfaces{w}
		}
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.dir, err = newRunDir(); err != nil {
		return nil, err
	}
	if s.uverbs, err = uverbs.NewServer(s.core, uverbs.ServerOptions{Log: s.log, Kept: s.kept}); err != nil {
		return nil, err
	}
	if s.cm, err = rdmacm.New(s.core, rdmacm.Config{NoLoopback: opts.NoLoopback, Log: s.log}); err != nil {
		return nil, err
	}
	cm := ucma.NewServer(s.cm)
	s.cmServer = cm
	pollers := poller.New(s.log)
	if s.guests, err = supervisor.NewSupervisor(supervisor.SupervisorConfig{
		Uverbs: s.uverbs, CM: cm, Links: linksOf{
			s}, Dir: s.dir.path, Node: opts.Node, AskHelper: opts.AskLaunchers, Quota: s.quota,
		Doorbells: opts.Doorbells, Pollers: pollers, Rights: &s.rights, Kept: s.kept, Authority: s.authority, Log: s.log}); err != nil {
		return nil, err
	}
	s.remote = remote.New(remote.Config{Uverbs: s.uverbs, CM: cm, Quota: s.quota, Copies: s.guests.Copies,
		Pollers: pollers, Rights: &s.rights,
		Kept: s.kept, Log: s.log})
	if opts.Confine {
		// The supervisor has made what it needs a privilege for, and no thread blocks signals yet.
		if err := privilege.Confine(privilege.Kept); errors.Is(err, syscall.ENOTSUP) {
			s.log.Warn("capabilities are kept, since this binary has cgo", "err", err)
		} else if err != nil {
			return nil, err
		}
	}
	if opts.Links == nil {
		l, err := s.openDefaultLink()
		if err != nil {
			return nil, err
		}
		s.addLink(l)
		if err := s.guests.Shown(); err != nil {
			return nil, err
		}
	}
	for _, spec := range opts.Links {
		if err := s.LinkAdd(spec); err != nil {
			return nil, err
		}
	}
	s.configured = false
	if s.interfaces != nil {
		s.follower.Go(func() { s.follow(s.interfaces) })
	}
	warnOfShortQueues(s.log, limits[quota.RingBytes], opts.Drivers)
	if opts.Confine { // no file is read as before
		if err := s.confine(); err != nil {
			return nil, err
		}
	}
	patiently(s.dir.sweep) // the next service removes what is left
	return s, nil
}

// confine leaves the process what a service needs from here on; see package confine.
func (s *Service) confine() error {
	if err := confine.Opener(s.dir.path); errors.Is(err, syscall.ENOTSUP) {
		s.log.Debug("files are reopened without a Landlock domain", "err", err)
	} else if err != nil {
		return err
	}
	if err := confine.Process(); errors.Is(err, syscall.ENOTSUP) {
		s.log.Warn("no system call is refused to the service", "err", err)
	} else if err != nil {
		return err
	}
	return nil
}

func (s *Service) logf(format string, args ...any) { s.log.Warn(fmt.Sprintf(format, args...)) }

// Close ends every session and removes every device. Programs that still run find their device gone. It returns within
// CloseTimeout; an error, which wraps ETIMEDOUT, names what has not ended by then, because a program's memory does not
// answer: then Abandon and the end of the process are left.
func (s *Service) Close() error {
	s.stop()
	var doing atomic.Pointer[string]
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.close(func(step string) { doing.Store(&step) })
	}()
	timer := time.NewTimer(s.closeTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return fmt.Errorf("end the service: %s: not done after %v, since a program's memory does not answer: %w",
			*doing.Load(), s.closeTimeout, syscall.ETIMEDOUT)
	}
}

func (s *Service) close(step func(string)) {
	step("captures")
	s.recorders.Wait()
	if s.interfaces != nil {
		step("following the interfaces")
		s.interfaces.Close()
		s.follower.Wait()
	}
	step("making a device")
	s.mu.Lock() // whoever comes now sees that the service ends
	making := &s.making
	s.mu.Unlock()
	making.Wait()
	for {
		s.mu.Lock()
		n := len(s.links)
		if n == 0 {
			s.mu.Unlock()
			break
		}
		l := s.links[n-1]
		s.forgetLink(l)
		s.mu.Unlock()
		step("device " + l.spec.Name)
		if err := l.slot.Close(); err != nil {
			s.log.Warn("device removed", "err", err)
		}
	}
	step("programs")
	if s.guests != nil {
		s.guests.Close()
	}
	step("programs at the socket")
	s.programs.Lock()
	for c := range s.programs.attached {
		c.Close()
	}
	s.programs.Unlock()
	s.files.Wait()
	step("connections")
	if s.cm != nil {
		s.cm.Close()
	}
	step("device files")
	if s.uverbs != nil {
		s.uverbs.Close()
	}
	if s.dir != nil {
		s.dir.close()
	}
	s.disconnect()
	s.kept.Close()
	step("log")
	s.debugLog.close()
}

// Abandon leaves programs to their launchers and removes what the service has on /dev/shm, for when Close has failed
// and the process is about to end.
func (s *Service) Abandon() {
	s.programs.Lock()
	for c := range s.programs.attached {
		c.Close()
	}
	s.programs.Unlock()
	time.Sleep(abandonTime)
	s.dir.remove()
	s.disconnect()
}

// abandonTime is for launchers to complete what programs wait for; see SessionDir.
const abandonTime = 500 * time.Millisecond

// Stop makes Serve return.
func (s *Service) Stop() { s.stop() }

// Ended returns a channel that is closed once the service is to stop.
func (s *Service) Ended() <-chan struct{} { return s.ended.Done() }

func (s *Service) waitUntilOver() {
	if s.opts.Idle == 0 {
		<-s.ended.Done()
		return
	}
	tick := time.NewTicker(s.opts.Idle / 4)
	defer tick.Stop()
	for {
		select {
		case <-s.ended.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		keep := s.byHandLocked()
		s.mu.Unlock()
		s.programs.Lock()
		idle := s.programs.n == 0 && time.Since(s.programs.since) >= s.opts.Idle
		s.programs.Unlock()
		if idle && !keep {
			return
		}
	}
}

// attached notes that a connection stands for a program, until done; ESHUTDOWN if the service ends.
func (s *Service) attached(c ctl.Conn) (done func(), err error) {
	s.programs.Lock()
	defer s.programs.Unlock()
	if s.programs.yielded || s.ended.Err() != nil {
		return nil, errEnding
	}
	s.programs.n++
	s.programs.attached[c.UnixConn] = struct{}{}
	return func() {
		s.programs.Lock()
		delete(s.programs.attached, c.UnixConn)
		s.programs.Unlock()
		s.countProgram(-1)
	}, nil
}

// errEnding answers a program that comes too late.
var errEnding = fmt.Errorf("attach a program: the service is ending: %w", syscall.ESHUTDOWN)

// yield makes way for a service that a user starts: no program may attach any more, and the caller is to call Stop.
// EBUSY if a user has started this one too, or it is in use.
func (s *Service) yield() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.programs.Lock()
	defer s.programs.Unlock()
	var use string
	switch {
	case !s.opts.OnDemand:
		use = "it was started by `verbena serve`"
	case s.programs.n > 0:
		use = fmt.Sprintf("programs and captures that use it: %d", s.programs.n)
	case s.byHandLocked():
		use = "its devices or fault rules were changed by hand"
	default:
		s.programs.yielded = true
		return nil
	}
	return fmt.Errorf("process %d, %s: %w", os.Getpid(), use, syscall.EBUSY)
}

// byHandLocked reports whether links are changed by hand, or have fault rules, which would be lost by ending.
func (s *Service) byHandLocked() bool {
	if len(s.verbFaults.list()) > 0 {
		return true
	}
	return s.configured || slices.ContainsFunc(s.links, func(l *rdmaLink) bool { return len(l.faults.List()) > 0 })
}

func (s *Service) countProgram(d int) {
	s.programs.Lock()
	defer s.programs.Unlock()
	s.programs.n += d
	s.programs.since = time.Now()
}
