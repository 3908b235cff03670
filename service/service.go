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
	"verbena/reqtrace"
	"verbena/supervisor"
	"verbena/uverbs"
	"verbena/uverbs/poller"
)

// Options configures a service. With Drivers alone, the service makes the default device and runs until Stop.
type Options struct {
	// Drivers are the drivers that make the devices. The service selects a driver by its type, which is the beginning
	// of the device's name. At least one driver is required. The service owns the drivers.
	Drivers []driver.Driver
	// Links describes the devices to make. If Links is nil, the service makes one device of the first driver, such
	// as rxe0, on the host's first usable address.
	Links []ctl.LinkSpec
	// Wire sends every packet through a UDP socket, also between devices of this service.
	Wire bool
	// NoProbe makes devices retransmit only after the timeout that the program has set.
	NoProbe bool
	// Doorbells selects the doorbells that unmodified programs ring without a trap.
	Doorbells supervisor.Doorbells
	// NoLoopback disables 127.0.0.1 and ::1 as aliases of a device, unless a device has the address.
	NoLoopback bool
	// Node is the owner and mode of the device files. The zero value means owned by root and accessible to all
	// users.
	Node supervisor.Node
	// AskLaunchers makes the service access programs through their launchers, which is necessary under Yama.
	AskLaunchers bool
	// Seed makes random choices repeatable.
	Seed uint64
	// Idle is the time without attached programs after which Serve ends, if no links, devices or faults were changed
	// by hand; 0 means never.
	Idle time.Duration
	// OnDemand marks a service that was started by a client and not by a user. While idle, an on-demand service
	// yields to a service that a user starts.
	OnDemand bool
	// Managers are additional user IDs that may manage the service, beside those defined by package principal.
	Managers []int
	// Limits limits the resources of users; nil means the DefaultLimits of a service that is not shared.
	Limits *quota.Limits
	// Confine permanently drops privileges that the service does not need after its start, as described in package
	// privilege. Confine affects the whole process, so it is not for programs with other tasks.
	Confine bool
	// Web is the address of the service's web page, with its token. The service reports it to managers, and serves
	// nothing there.
	Web string
	// interfaces provides the network interfaces that the devices follow; nil means the interfaces of this network
	// namespace.
	Interfaces interfaceSource
	Log        *slog.Logger
}

// CloseTimeout limits the time of Close.
const CloseTimeout = ctl.EndTimeout

// Service owns devices and supervises programs.
type Service struct {
	opts       Options
	log        *slog.Logger
	debugLog   *debugQueue // nil without Options.Log
	dir        *runDir
	core       *ib.Core
	uverbs     *uverbs.Server
	cm         *rdmacm.Manager
	verbFaults verbFaults
	guests     *supervisor.Supervisor
	remote     *remote.Server
	files      sync.WaitGroup // counts the device files opened over the socket
	quota      *quota.Ledger
	requests   perUserCounter // pending requests by user
	traceLooks traceLooks
	acceptor   acceptor
	authority  *principal.Authority
	rights     rights.Queues // descriptors in transit from users
	kept       *kept.Keeper  // resources that users' programs keep in use
	stop       context.CancelFunc
	ended      context.Context // done when the service begins to stop
	recorders  sync.WaitGroup  // counts captures in progress
	interfaces interfaceSource // nil without interfaces to follow
	follower   sync.WaitGroup

	requestTimeout, closeTimeout, firstMessage, restOfMessage time.Duration

	links       linkTable
	programs    attachedPrograms
	failures    *failureLog
	connections controlConnections
}

// New makes the devices and the files that programs need to access them.
func New(opts Options) (_ *Service, err error) {
	if len(opts.Drivers) == 0 {
		return nil, fmt.Errorf("a service without drivers: %w", syscall.EINVAL)
	}
	m := thisMachineResources() // must be read before the process confines itself
	limits := m.defaultLimits(false)
	if opts.Limits != nil {
		limits = *opts.Limits
	}
	if err := m.checkRingBytes(limits[quota.RingBytes], opts.Drivers); err != nil {
		return nil, err
	}
	s := &Service{opts: opts, log: slog.New(slog.DiscardHandler), core: &ib.Core{},
		links:          linkTable{names: map[string]bool{}, recordings: map[*packetRecording]struct{}{}},
		requestTimeout: requestTimeout, closeTimeout: CloseTimeout, firstMessage: firstMessage, restOfMessage: restOfMessage}
	s.programs.attached = map[*net.UnixConn]struct{}{}
	if opts.Log != nil {
		s.log, s.debugLog = limitLog(opts.Log)
		go s.debugLog.writeRecords()
	}
	overflow := -1
	if m := ctl.OwnIDMap(); !m.All {
		overflow = m.Overflow
	}
	if s.authority, err = principal.New(opts.Managers, overflow); err != nil {
		return nil, err
	}
	s.quota = quota.New(limits)
	s.links.opts, s.links.log, s.links.core = &s.opts, s.log, s.core
	s.links.ringBytes = limits[quota.RingBytes].UserMaximum()
	refused := make(refusalQueue, 16)
	s.quota.OnRefusal(refused.add)
	s.kept = kept.New(s.log)
	s.quota.OnShortage(s.kept.Release)
	raiseThreadLimit()
	if opts.Confine { // the process runs the service and nothing else
		m.limitHeap(limits)
	}
	if m.cgroup != (cgroup.Limits{}) {
		s.log.Info("the cgroup reduces the limits of users", "memory", m.cgroup.Memory, "tasks", m.cgroup.Tasks)
	}
	s.ended, s.stop = context.WithCancel(context.Background())
	s.links.ended = s.ended
	s.failures = newFailureLog(s.ended, s.log, reqtrace.New(tracedProgramOf))
	s.links.causes, s.links.requests = s.failures.causes, s.failures.requests
	s.acceptor = acceptor{log: s.log, quota: s.quota, rights: &s.rights, kept: s.kept, authority: s.authority,
		ended: s.ended, refusing: make(chan struct{}, maxRefusing),
		answer: func(c ctl.Conn, who peer) { s.answerRequests(c, who, s.firstMessage) }}
	s.programs.since = time.Now()
	go refused.write(s.ended, s.log)
	if s.interfaces = opts.Interfaces; s.interfaces == nil {
		// Watch starts before the devices are made, so that no change is missed.
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
	if err := s.openServers(); err != nil {
		return nil, err
	}
	if opts.Confine {
		// At this point the supervisor needs no more privileges, and no thread blocks signals yet.
		if err := privilege.DropPrivileges(privilege.KeptCapabilities); errors.Is(err, syscall.ENOTSUP) {
			s.log.Warn("capabilities are kept because this binary uses cgo", "err", err)
		} else if err != nil {
			return nil, err
		}
	}
	if err := s.links.createFirstLinks(); err != nil {
		return nil, err
	}
	if s.interfaces != nil {
		s.follower.Go(func() { s.links.followInterfaces(s.interfaces) })
	}
	warnOfShortQueues(s.log, limits[quota.RingBytes], opts.Drivers)
	if opts.Confine { // a confined process opens files in another way
		if err := s.dropPermissions(); err != nil {
			return nil, err
		}
	}
	runWithTimeout(s.dir.removeStaleDirs) // after a timeout, the next service removes the remaining directories
	return s, nil
}

// openServers makes the directory of the service and the servers of the programs' calls. After an error, the caller
// closes the service.
func (s *Service) openServers() (err error) {
	if s.dir, err = newRunDir(); err != nil {
		return err
	}
	if s.uverbs, err = uverbs.NewServer(s.core, uverbs.ServerOptions{Log: s.log, Kept: s.kept}); err != nil {
		return err
	}
	if s.cm, err = rdmacm.New(s.core, rdmacm.Config{NoLoopback: s.opts.NoLoopback, Log: s.log}); err != nil {
		return err
	}
	cm := ucma.NewServer(s.cm)
	s.failures.cm = cm
	cm.OnReport(s.failures.connectionChanged)
	s.verbFaults.ids, s.verbFaults.uverbs, s.verbFaults.cm, s.verbFaults.ended = &s.links.faultIDs, s.uverbs, cm, s.ended
	pollers := poller.New(s.log)
	if s.guests, err = supervisor.NewSupervisor(supervisor.SupervisorConfig{
		Uverbs: s.uverbs, CM: cm, Links: netlinkLinks{&s.links}, PCI: s.links.functions.find,
		Dir: s.dir.path, Node: s.opts.Node,
		AskHelper: s.opts.AskLaunchers, Quota: s.quota, Doorbells: s.opts.Doorbells, Pollers: pollers, Rights: &s.rights,
		Kept: s.kept, Authority: s.authority, Refused: s.failures.callRefused, Log: s.log}); err != nil {
		return err
	}
	s.links.guests = s.guests
	s.remote = remote.New(remote.Config{Uverbs: s.uverbs, CM: cm, Quota: s.quota, Copies: s.guests.CopiesOf,
		Pollers: pollers, Rights: &s.rights,
		Kept: s.kept, Refused: s.failures.callRefused, Log: s.log})
	return nil
}

// dropPermissions reduces the process to the permissions that it still needs, as described in package confine.
func (s *Service) dropPermissions() error {
	if err := confine.StartOpener(s.dir.path); errors.Is(err, syscall.ENOTSUP) {
		s.log.Debug("files are reopened outside a Landlock domain", "err", err)
	} else if err != nil {
		return err
	}
	if err := confine.FilterProcess(); errors.Is(err, syscall.ENOTSUP) {
		s.log.Warn("the service runs without a seccomp filter", "err", err)
	} else if err != nil {
		return err
	}
	return nil
}

// Close ends all sessions and removes all devices. Running programs then see their devices as removed. Close
// returns within CloseTimeout. If an error wraps ETIMEDOUT, access to a program's memory blocks, and the error
// names the blocked step. In this case the caller should call Abandon and end the process.
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
		return fmt.Errorf("end the service: %s: not complete after %v, because access to a program's memory blocks: %w",
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
	s.links.mu.Lock() // later callers see that the service is ending
	making := &s.links.making
	s.links.mu.Unlock()
	making.Wait()
	if s.guests != nil {
		s.guests.HoldTrees() // the trees are removed below
	}
	s.reportStop()
	for {
		s.links.mu.Lock()
		n := len(s.links.list)
		if n == 0 {
			s.links.mu.Unlock()
			break
		}
		l := s.links.list[n-1]
		s.links.removeLink(l)
		s.links.mu.Unlock()
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
	s.connections.close()
	s.kept.Close()
	step("log")
	s.debugLog.close()
}

// Abandon leaves the programs to their launchers, and removes the service's files on /dev/shm. Abandon is for use
// after a failed Close, when the process is about to end.
func (s *Service) Abandon() {
	s.programs.Lock()
	for c := range s.programs.attached {
		c.Close()
	}
	s.programs.Unlock()
	time.Sleep(abandonTime)
	s.dir.forceRemove()
	s.connections.close()
}

// abandonTime is the time in which launchers complete pending calls of programs, as described at SessionDir.
const abandonTime = 500 * time.Millisecond

// Stop makes Serve return.
func (s *Service) Stop() { s.stop() }

// Ended returns a channel that is closed when the service begins to stop.
func (s *Service) Ended() <-chan struct{} { return s.ended.Done() }

func (s *Service) waitForEnd() {
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
		s.links.mu.Lock()
		keep := s.isChangedByHandLocked()
		s.links.mu.Unlock()
		s.programs.Lock()
		idle := s.programs.n == 0 && time.Since(s.programs.since) >= s.opts.Idle
		s.programs.Unlock()
		if idle && !keep {
			return
		}
	}
}

// yield makes the service refuse further programs, before a user starts another service at its location. After
// success the caller must call Stop. yield returns EBUSY if a user started this service or if it is in use.
func (s *Service) yield() error {
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	s.programs.Lock()
	defer s.programs.Unlock()
	var use string
	switch {
	case !s.opts.OnDemand:
		use = "it was started by `verbena serve`"
	case s.programs.n > 0:
		use = fmt.Sprintf("programs and captures that use it: %d", s.programs.n)
	case s.isChangedByHandLocked():
		use = "its devices or fault rules were changed by hand"
	default:
		s.programs.yielded = true
		return nil
	}
	return fmt.Errorf("process %d, %s: %w", os.Getpid(), use, syscall.EBUSY)
}

// isChangedByHandLocked reports whether links, devices or fault rules were changed by hand. The end of the service
// would lose these changes.
func (s *Service) isChangedByHandLocked() bool {
	if len(s.verbFaults.listRules()) > 0 {
		return true
	}
	return s.links.configured ||
		slices.ContainsFunc(s.links.list, func(l *rdmaLink) bool { return l.isInManualState() || len(l.faults.List()) > 0 })
}
