package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/driver"
	"verbena/driver/efa"
	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/internal/pci"
	"verbena/internal/quota"
	"verbena/internal/sched"
	"verbena/service"
	"verbena/service/metrics"
	"verbena/service/web"
	"verbena/supervisor"
)

type deviceFlags struct {
	Link       []string `help:"A device to make: NAME=ADDR[,ADDR...], or NAME=INTERFACE; with ,personality=efa it is an EFA adapter, with ,pci it looks like a PCI adapter. Default: rxe0 on the first usable interface." placeholder:"NAME=WHERE" sep:"none" complete:"none"`
	Wire       bool     `help:"Send every packet through a UDP socket, also between devices of this service."`
	NoProbe    bool     `help:"Do not retransmit before the acknowledgement timeout of the program's queue pair (IBA 9.7.6.1.3). By default, devices retransmit the oldest unacknowledged packet after 4 ms, 8 ms and so on, to detect losses early."`
	Doorbells  string   `help:"Way in which programs announce posted requests: by a trapped system call; natively, detected by a thread that polls their queues; or auto, natively while enough processors are free (at least 3, one for each open device and each user's thread)." enum:"auto,native,trapped" default:"auto"`
	NoLoopback bool     `help:"Do not use 127.0.0.1 and ::1 as aliases of a device in the connection manager, unless a device has the address, as on Linux."`
	Seed       uint64   `help:"Seed of all random decisions, such as those of fault rules; 0: from the clock." placeholder:"N" complete:"none"`
}

// serviceDrivers returns the drivers of a service. A device name begins with the link type of its driver.
func serviceDrivers() []driver.Driver { return []driver.Driver{&rxe.Driver{}, &efa.Driver{}} }

func (f *deviceFlags) linkSpecs() ([]ctl.LinkSpec, error) {
	var specs []ctl.LinkSpec
	for _, l := range f.Link {
		s, err := service.ParseLinkSpec(l, serviceDrivers())
		if err != nil {
			return nil, err
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// commandLineArgs returns the flags as command-line arguments for a new service.
func (f *deviceFlags) commandLineArgs() []string {
	var a []string
	for _, l := range f.Link {
		a = append(a, "--link", l)
	}
	if f.Wire {
		a = append(a, "--wire")
	}
	if f.NoProbe {
		a = append(a, "--no-probe")
	}
	if f.Doorbells != "auto" {
		a = append(a, "--doorbells", f.Doorbells)
	}
	if f.NoLoopback {
		a = append(a, "--no-loopback")
	}
	if f.Seed != 0 {
		a = append(a, fmt.Sprintf("--seed=%d", f.Seed))
	}
	return a
}

var doorbellModes = map[string]supervisor.Doorbells{
	"auto": supervisor.DoorbellsAuto, "native": supervisor.DoorbellsNative, "trapped": supervisor.DoorbellsTrapped,
}

type serveCmd struct {
	deviceFlags
	nodeFlags
	Limit        []string      `help:"Limit of the resources of one user, and of all users together: KIND=PER-USER[/TOTAL]; see below." placeholder:"LIMIT" sep:"none" complete:"none"`
	ManagerUID   []int         `name:"manager-uid" help:"Additional user id that may manage the service: links, resets, faults, captures, stop. By default only the service's own user may, and root with CAP_SYS_ADMIN or CAP_NET_ADMIN; root in a container without these may not." placeholder:"UID" complete:"none"`
	Idle         time.Duration `help:"End after a time without programs, such as 10m; default: never." placeholder:"DURATION" complete:"none"`
	Metrics      *string       `help:"Answer Prometheus at HOST:PORT, such as 127.0.0.1:9401, below /metrics; without HOST at all addresses of this machine. Any client that can connect may read the metrics, which contain nothing about a single user or program." placeholder:"ADDR" complete:"none"`
	Web          *string       `help:"Serve a web page at HOST:PORT, such as 127.0.0.1:9402, that shows devices and connections and changes links, devices and faults. The printed address has a token; any client with the token has the rights of the service's owner." placeholder:"ADDR" complete:"none"`
	Daemon       bool          `help:"Start the service in the background and return when it is ready; print the name of the file to which its messages go."`
	Debug        bool          `help:"Also log the beginning and end of programs, opened and closed device files, refused commands with the reason, failed queue pairs, and resets."`
	OnDemand     bool          `hidden:"" help:"Report on descriptor 3; set when a client starts the service."`
	Spawned      bool          `hidden:"" help:"Report on descriptor 3; set by serve --daemon."`
	AskLaunchers bool          `hidden:"" help:"Access programs through their launchers, as where Yama restricts ptrace."`
	Private      bool          `hidden:"" help:"Serve only descriptor 4, and end when it is closed."`
	Listen       bool          `hidden:"" help:"With --private: also serve the control socket."`
}

func (s *serveCmd) Help() string {
	kinds := quota.KindNames()
	last := len(kinds) - 1
	return "Kinds of --limit, which can be repeated, are " + strings.Join(kinds[:last], ", ") + " and " + kinds[last] + `. Numbers may end in K, M, G or T; 0 is no limit. "verbena res show" prints
what each user holds, with the limits. The service ends within 10 seconds of SIGTERM, SIGINT or "verbena stop"; a second
signal kills it.

With ",pci" after the address or interface, programs see the device as a PCI adapter in sysfs, as the topology code of NCCL and
hwloc expects it; ",pci=ADDRESS" chooses its address. Options follow as ",NAME=VALUE": ` + strings.Join(pci.OptionNames(), ", ") + `.

With ",personality=efa" a device is an Elastic Fabric Adapter in place of Soft-RoCE, for the efa provider of libibverbs. Devices
whose names begin with efa are so in any case.

A service that "verbena run" has started is replaced if no program uses it. Any other one that has the control socket is
left alone, and this command fails.

Examples:
  verbena serve --daemon --link rxe0=127.0.0.1
  verbena serve --daemon --link rxe0=127.0.0.1,pci --link rxe1=127.0.0.2,pci,numa=1
  verbena serve --daemon --link rxe0=127.0.0.1 --link rdmap0s6=127.0.0.2,personality=efa
  verbena serve --socket /run/verbena/sock --group rdma --mode 0660
  verbena serve --socket /run/verbena/sock --mode 0666 --limit qps=2000/50000 --limit ring-bytes=1G
  verbena serve --daemon --metrics 127.0.0.1:9401
  verbena serve --daemon --web 127.0.0.1:9402`
}

// onDemandIdleTimeout is the time for which a service started by `verbena run` continues after its last program.
const onDemandIdleTimeout = 30 * time.Second

func (s *serveCmd) Run(c *cli) error {
	if s.Daemon && !s.Spawned {
		return s.runDaemon(c)
	}
	spawned := s.OnDemand || s.Private || s.Spawned
	err := s.serve(c, func() {
		if spawned {
			printStatus("ready")
		}
	})
	if err != nil && spawned {
		printStatus(errorWithRemedy(err))
		if s.Private || s.Spawned { // the parent process prints this error
			return exitCodeError(exitFailure)
		}
	}
	return err
}

// runDaemon runs the same command line again in the background.
func (s *serveCmd) runDaemon(c *cli) error {
	loc, err := c.serviceLocation()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start a service: %w", err)
	}
	// daemon appends flags, and "--" may be only at the end.
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return a == "--" })
	client, err := service.StartDaemon(loc, self, append(args, "--spawned")...)
	if err != nil {
		return err
	}
	defer client.Close()
	info, err := client.Do(&ctl.Request{Op: ctl.OpInfo})
	if err != nil {
		return err
	}
	fmt.Printf("process %d serves at %s; its messages are in %s\n", info.Info.PID, loc.Socket, loc.LogPath())
	if info.Info.Web != "" && s.Web != nil {
		fmt.Print(web.Notice(*s.Web, info.Info.Web))
	}
	return nil
}

func printStatus(line string) {
	f := os.NewFile(service.ReadyFD, "ready")
	fmt.Fprintln(f, strings.ReplaceAll(line, "\n", "; "))
	f.Close()
}

func (s *serveCmd) serve(c *cli, ready func()) error {
	sched.RaiseMaxProcs()
	if err := supervisor.CheckProc(); err != nil {
		return err
	}
	level := slog.LevelInfo
	if s.Debug {
		level = slog.LevelDebug
	} else if s.Private {
		level = slog.LevelWarn
	}
	opts := service.Options{
		Drivers:    serviceDrivers(),
		Wire:       s.Wire,
		NoProbe:    s.NoProbe,
		NoLoopback: s.NoLoopback,
		Doorbells:  doorbellModes[s.Doorbells],
		Seed:       s.Seed,
		Idle:       s.Idle,
		Managers:   s.ManagerUID,

		OnDemand:     s.OnDemand,
		AskLaunchers: s.AskLaunchers,
		Confine:      true,

		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
	if opts.Seed == 0 {
		opts.Seed = uint64(time.Now().UnixNano())
	}
	if s.OnDemand && opts.Idle == 0 {
		opts.Idle = onDemandIdleTimeout
	}
	var err error
	if opts.Links, err = s.linkSpecs(); err != nil {
		return err
	}
	shared, err := s.nodeFromFlags()
	if err != nil {
		return err
	}
	limits := service.DefaultLimits(shared != nil)
	for _, text := range s.Limit {
		if err := limits.Parse(text); err != nil {
			return err
		}
	}
	opts.Limits = &limits
	if shared != nil {
		opts.Node = *shared
	}
	if s.Private {
		return s.servePrivate(c, opts, ready)
	}
	loc, err := c.serviceLocation()
	if err != nil {
		return err
	}
	l, err := s.listen(loc, shared)
	if err != nil {
		return err
	}
	defer l.CloseAndUnlock()
	stopMetrics, err := s.listenMetrics(opts.Log)
	if err != nil {
		return err
	}
	page, err := s.listenWeb(&opts)
	if err != nil {
		return err
	}
	features := probeKernel(opts.Log)
	svc, err := service.New(opts)
	if err != nil {
		return err
	}
	defer endService(svc, opts.Log, l.CloseAndUnlock)
	defer stopMetrics(svc)()
	defer s.serveWeb(page, svc, opts.Log)()
	stopOnSignal(svc)
	features.logMissingFeatures(opts.Log)
	opts.Log.Info("serving", "socket", loc.Socket, "seed", opts.Seed)
	ready()
	return svc.Serve(l)
}

// listenWeb listens for browsers, if requested. Otherwise the listener is nil.
func (s *serveCmd) listenWeb(opts *service.Options) (*web.Listener, error) {
	if s.Web == nil {
		return nil, nil
	}
	l, err := web.Listen(*s.Web)
	if err != nil {
		return nil, err
	}
	opts.Web = l.URL()
	return l, nil
}

// serveWeb serves the web page on l, unless l is nil, until the call of end.
func (s *serveCmd) serveWeb(l *web.Listener, svc *service.Service, log *slog.Logger) (end func()) {
	if l == nil {
		return func() {}
	}
	fmt.Fprint(os.Stderr, web.Notice(*s.Web, l.URL()))
	info, _ := debug.ReadBuildInfo()
	go func() {
		o := web.Options{Source: svc, Version: versionText(info), Causes: web.CausesOf(svc), Log: log}
		if err := web.Serve(l, o); err != nil {
			log.Error("serve the web page", "err", err)
		}
	}()
	return func() { l.Close() }
}

// listenMetrics listens for Prometheus, if requested. listenMetrics returns begin, which starts to answer, and end,
// which stops.
func (s *serveCmd) listenMetrics(log *slog.Logger) (begin func(*service.Service) (end func()), err error) {
	if s.Metrics == nil {
		return func(*service.Service) func() { return func() {} }, nil
	}
	l, err := metrics.Listen(*s.Metrics)
	if err != nil {
		return nil, err
	}
	return func(svc *service.Service) func() {
		log.Info("metrics", "url", "http://"+l.Addr().String()+"/metrics")
		info, _ := debug.ReadBuildInfo()
		go func() {
			if err := metrics.Serve(l, svc, versionText(info), log); err != nil {
				log.Error("serve metrics", "err", err)
			}
		}()
		return func() { l.Close() }
	}, nil
}

// listen binds the location, if necessary after another service has released it.
func (s *serveCmd) listen(loc ctl.Location, shared *supervisor.Node) (*service.Listener, error) {
	l, err := service.Listen(loc, shared)
	if !errors.Is(err, syscall.EADDRINUSE) || s.OnDemand {
		return l, err
	}
	if err := service.TakeOver(loc); err != nil {
		return nil, err
	}
	return service.Listen(loc, shared)
}

// servePrivate serves the inherited connection until the connection ends. With --listen, servePrivate also serves
// other connections.
func (s *serveCmd) servePrivate(c *cli, opts service.Options, ready func()) error {
	unix.CloseOnExec(service.ControlFD)
	f := os.NewFile(service.ControlFD, "control")
	nc, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("private service: descriptor %d: %w", service.ControlFD, err)
	}
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("private service: descriptor %d is not a Unix socket", service.ControlFD)
	}
	release := func() {}
	var l *service.Listener
	if s.Listen {
		loc, err := c.serviceLocation()
		if err == nil {
			l, err = service.Listen(loc, nil)
		}
		if err != nil {
			return err
		}
		release = l.CloseAndUnlock
		defer release()
	}
	svc, err := service.New(opts)
	if err != nil {
		return err
	}
	defer endService(svc, opts.Log, release)
	stopOnSignal(svc)
	if l != nil {
		go func() {
			if err := svc.Serve(l); err != nil {
				opts.Log.Error(err.Error())
			}
		}()
	}
	ready()
	done := make(chan struct{})
	go func() {
		defer close(done)
		svc.ServeConn(uc)
	}()
	select {
	case <-done:
	case <-svc.Ended():
	}
	return nil
}

// endService ends the service. If a program's memory blocks an orderly end, endService closes the service by force, and
// the process must exit afterwards.
func endService(svc *service.Service, log *slog.Logger, release func()) {
	err := svc.Close()
	if err != nil {
		log.Error("ending by force", "err", err)
		svc.Abandon()
	}
	release()
	closeAllFiles()
	if err != nil {
		os.Exit(exitFailure)
	}
}

// closeAllFiles closes all descriptors of the process, except the standard streams and the descriptors of the Go
// runtime. A thread that waits for a FUSE server cannot be killed, and would keep all descriptors open. Clients
// would then not detect the end of the service, and another service could not bind the addresses of its devices.
func closeAllFiles() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		closeMatchingFiles(func(to string) bool { return strings.HasPrefix(to, "socket:") })
		// eventpoll and eventfd
		closeMatchingFiles(func(to string) bool { return !strings.HasPrefix(to, "anon_inode:[event") })
	}()
	select {
	case <-done:
	case <-time.After(time.Second): // a descriptor may belong to a FUSE server that does not answer
	}
}

// closeMatchingFiles closes the descriptors of files for which meant returns true.
func closeMatchingFiles(meant func(to string) bool) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && meant(to) {
			_ = unix.Close(fd)
		}
	}
}

// stopOnSignal stops the service at SIGINT and SIGTERM, and at SIGHUP if it was started on a terminal. A daemon
// ignores SIGHUP, which the kernel sends if the process has acquired a terminal since its start.
func stopOnSignal(svc *service.Service) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	if hasTerminal() {
		signal.Notify(ch, syscall.SIGHUP)
	} else {
		signal.Ignore(syscall.SIGHUP)
	}
	go func() {
		<-ch
		signal.Stop(ch) // a second signal then kills this process
		svc.Stop()
	}()
}

// hasTerminal reports whether this process has a controlling terminal. (tty(4))
func hasTerminal() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

type stopCmd struct{}

func (stopCmd) Run(c *cli) error {
	loc, err := c.serviceLocation()
	if err != nil {
		return err
	}
	client, err := ctl.Dial(loc)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Stop()
}
