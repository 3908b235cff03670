package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/driver/rxe/wire/netdev"
	"verbena/guest"
	"verbena/ib"
	"verbena/uverbs"
)

// Options configure a service. The zero value makes the default device and never ends by itself.
type Options struct {
	// Links are the devices to make; nil: rxe0 on the host's first usable address.
	Links []LinkSpec
	// Wire sends every packet through a UDP socket, also between devices of this service.
	Wire bool
	// Node is the owner and mode of the device files; the zero value: root's, for everybody.
	Node guest.Node
	// AskLaunchers has the service reach programs through their launchers, as where Yama restricts it.
	AskLaunchers bool
	// Seed makes what is random repeatable.
	Seed uint64
	// Idle ends Serve when no program has been attached for so long, and nobody has configured links or faults; 0:
	// never.
	Idle time.Duration
	// Interfaces are what the devices follow; nil: the interfaces of this network namespace.
	Interfaces Interfaces
	Log        *slog.Logger
}

// CloseTimeout bounds Close.
const CloseTimeout = 10 * time.Second

// Service owns devices and supervises programs.
type Service struct {
	opts       Options
	log        *slog.Logger
	dir        *runDir
	core       *ib.Core
	fabric     *rxe.Fabric
	made       atomic.Uint64 // devices, so that each has random numbers of its own
	faultIDs   atomic.Int64
	uverbs     *uverbs.Server
	guests     *guest.Supervisor
	stop       context.CancelFunc
	ended      context.Context // done when the service is to stop
	recorders  sync.WaitGroup  // captures that go on
	interfaces Interfaces      // nil: nothing to follow
	follower   sync.WaitGroup

	mu         sync.Mutex // guards what follows; held while links come and go
	links      []*link
	recordings map[*recording]struct{}
	configured bool // links or faults were changed by hand, and would be lost by ending

	programs struct {
		sync.Mutex
		n     int
		since time.Time // of n being 0
	}
}

// New makes the devices, and whatever programs need to see them.
func New(opts Options) (_ *Service, err error) {
	s := &Service{opts: opts, log: opts.Log, core: &ib.Core{}, fabric: &rxe.Fabric{}, recordings: map[*recording]struct{}{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ended, s.stop = context.WithCancel(context.Background())
	s.programs.since = time.Now()
	raiseDescriptorLimit()
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
	if s.uverbs, err = uverbs.NewServer(s.core, uverbs.ServerOptions{Logf: s.logf}); err != nil {
		return nil, err
	}
	if s.guests, err = guest.NewSupervisor(guest.SupervisorConfig{
		Uverbs: s.uverbs, Dir: s.dir.path, Node: opts.Node, AskHelper: opts.AskLaunchers, Logf: s.logf}); err != nil {
		return nil, err
	}
	if opts.Links == nil {
		l, err := s.openDefaultLink()
		if err != nil {
			return nil, err
		}
		s.addLink(l)
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
	return s, nil
}

func (s *Service) logf(format string, args ...any) { s.log.Warn(fmt.Sprintf(format, args...)) }

// raiseDescriptorLimit: each context, channel and program of the service costs descriptors.
func raiseDescriptorLimit() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil && l.Cur < l.Max {
		l.Cur = l.Max
		unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
	}
}

// Close ends every session and removes every device. Programs that still run find their device gone.
func (s *Service) Close() {
	s.stop()
	s.recorders.Wait()
	if s.interfaces != nil {
		s.interfaces.Close()
		s.follower.Wait()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.links) > 0 {
		l := s.links[len(s.links)-1]
		s.links = s.links[:len(s.links)-1]
		if err := s.dropLink(l); err != nil {
			s.log.Warn("device removed", "err", err)
		}
	}
	if s.guests != nil {
		s.guests.Close()
	}
	if s.uverbs != nil {
		s.uverbs.Close()
	}
	if s.dir != nil {
		s.dir.close()
	}
}

// Serve answers clients of l until Stop, a client's request to stop, or idleness. It closes l.
func (s *Service) Serve(l *Listener) error {
	go func() {
		s.waitUntilOver()
		s.stop()
		l.Close()
	}()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if s.ended.Err() != nil {
				return nil
			}
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) {
				s.log.Warn("accept a client", "err", err)
				time.Sleep(50 * time.Millisecond)
				continue
			}
			return fmt.Errorf("accept clients: %w", err)
		}
		go s.ServeConn(c)
	}
}

// Stop makes Serve return.
func (s *Service) Stop() { s.stop() }

// Ended is closed once the service is to stop.
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
		keep := s.configured
		s.mu.Unlock()
		s.programs.Lock()
		idle := s.programs.n == 0 && time.Since(s.programs.since) >= s.opts.Idle
		s.programs.Unlock()
		if idle && !keep {
			return
		}
	}
}

func (s *Service) countProgram(d int) {
	s.programs.Lock()
	defer s.programs.Unlock()
	s.programs.n += d
	s.programs.since = time.Now()
}

// ServeConn answers one client until it closes the connection.
func (s *Service) ServeConn(uc *net.UnixConn) {
	c := conn{uc}
	defer c.Close()
	who, err := peerOf(uc)
	if err != nil {
		s.log.Warn("client", "err", err)
		return
	}
	for {
		var r Request
		fd, err := c.receive(&r)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
				s.log.Warn("client", "err", err)
			}
			return
		}
		if r.Op == OpAttach && r.Protocol == protocol && fd != nil && r.Attach != nil {
			if who.pid != 0 {
				r.Attach.PID = who.pid
			}
			s.attach(c, r.Attach, fd)
			return
		}
		var a *Response
		if err = who.authorize(r.Op); err != nil {
			if fd != nil {
				fd.Close()
			}
		} else if r.Op == OpCapture && r.Protocol == protocol && fd != nil && r.Capture != nil {
			a, err = &Response{}, s.Capture(r.Capture, fd)
		} else {
			if fd != nil {
				fd.Close()
			}
			a, err = s.answer(who, &r)
		}
		if err != nil {
			a = failure(err)
		}
		if err := c.send(a, nil); err != nil {
			return
		}
		if r.Op == OpStop && err == nil {
			s.stop()
		}
	}
}

func (s *Service) answer(who peer, r *Request) (*Response, error) {
	if r.Protocol != protocol && r.Op != OpStop { // which has always been the same, and is the way out
		return nil, fmt.Errorf("the running service speaks protocol %d, this command %d: they are of different versions; end the service with `verbena stop`, or kill process %d: %w",
			protocol, r.Protocol, os.Getpid(), syscall.EPROTO)
	}
	switch r.Op {
	case OpInfo, OpStop:
		s.programs.Lock()
		defer s.programs.Unlock()
		return &Response{Info: &Info{PID: os.Getpid(), Programs: s.programs.n}}, nil
	case OpLinkAdd:
		if r.Link == nil {
			break
		}
		return &Response{}, s.LinkAdd(*r.Link)
	case OpLinkDel:
		return &Response{}, s.LinkDel(r.Name)
	case OpLinkShow:
		links, err := s.Links()
		return &Response{Links: links}, err
	case OpResShow:
		return &Response{Contexts: who.visible(s.Resources())}, nil
	case OpDevReset:
		if r.Reset == nil {
			break
		}
		return &Response{}, s.DevReset(*r.Reset)
	case OpDevUnplug:
		return &Response{}, s.DevUnplug(r.Name)
	case OpDevPlug:
		return &Response{}, s.DevPlug(r.Name)
	case OpDevHang:
		return &Response{}, s.DevHang(r.Name)
	case OpDevShow:
		return &Response{Devs: s.Devs(who.sees)}, nil
	case OpStatShow:
		stats, err := s.Stats(r.Name)
		return &Response{Stats: stats}, err
	case OpFaultAdd:
		if r.Fault == nil {
			break
		}
		id, err := s.FaultAdd(*r.Fault)
		return &Response{ID: id}, err
	case OpFaultShow:
		f, err := s.Faults(r.Name)
		return &Response{Faults: f}, err
	case OpFaultClear:
		return &Response{}, s.FaultClear(r.Name, r.ID)
	}
	return nil, fmt.Errorf("malformed request %q: %w", clip(string(r.Op)), syscall.EINVAL)
}

// attach supervises a program until all its processes have ended. The connection only tells the launcher that
// the service lives; a launcher that dies does not end its program.
func (s *Service) attach(c conn, a *Attach, listener *os.File) {
	session, err := s.guests.Attach(listener, guest.SessionInfo{LauncherPID: a.PID, Args: a.Args, Helper: &launcher{c: c}})
	if err != nil {
		listener.Close()
		c.send(failure(err), nil)
		return
	}
	s.countProgram(1)
	defer s.countProgram(-1)
	if err := c.send(&Response{Attached: &Attached{Dir: session.Dir(), Helped: session.Helped()}}, nil); err != nil {
		s.log.Warn("attach a program", "err", err)
	}
	select {
	case <-session.Done():
	case <-s.ended.Done():
	}
}
