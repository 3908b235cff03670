package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"verbena/driver/orphan"
	"verbena/internal/confine"
	"verbena/internal/ctl"
	"verbena/internal/shm"
	"verbena/service"
	"verbena/supervisor"
)

type runCmd struct {
	deviceFlags
	Private              bool          `help:"Start a service for this program only, with its own devices (see --link, --wire, --no-probe, --doorbells, --no-loopback, --seed)."`
	Outlive              bool          `help:"After the end of the service, do not signal processes that keep its devices open. By default they get SIGTERM after 5 seconds, and SIGKILL after 10."`
	Capture              string        `help:"Record the packets of the service's devices in a pcapng file while the program runs; see verbena capture." placeholder:"FILE" complete:"file"`
	Trace                traceFlag     `help:"Print each call of the program that the service answers, except doorbells, with its result and time, to the standard error, or with --trace=FILE to a file." placeholder:"FILE" complete:"file"`
	TraceFile            string        `name:"trace-file" help:"Write the work requests of your programs on the service to this file, for https://ui.perfetto.dev: see docs/explain.md." placeholder:"FILE" complete:"file"`
	Explain              bool          `help:"If the program fails, explain its failures on the standard error; see verbena explain."`
	Weak                 weakFlag      `help:"Make the least convenient device that the specification permits, to expose mistakes of the program; see docs/weak.md. The seed is printed; the same SEED repeats a failure. With search:N, run the program with up to N seeds, and find the smallest set of decisions that makes it fail." placeholder:"SEED|search:N" complete:"none"`
	WeakChoices          []string      `help:"With --weak, make only these choices; see docs/results/weak.md. all selects the usual ones, beside others such as limits:efa; -NAME removes one." placeholder:"NAME" complete:"none"`
	WeakLog              string        `help:"Write the decisions of the weak device, and of fault rules, to this file, for --replay." placeholder:"FILE" complete:"file"`
	WeakConfirm          int           `help:"With --weak=search, the number of runs in a row in which a set of decisions must fail." default:"2" placeholder:"N" complete:"none"`
	WeakTimeout          time.Duration `help:"With --weak=search, the time limit of a run; a longer run has failed. The default is 10 times the time without weak mode, at least 10s." placeholder:"TIME" complete:"none"`
	WeakTotal            time.Duration `help:"With --weak=search, the time limit of the whole search." default:"10m" placeholder:"TIME" complete:"none"`
	Replay               string        `help:"Make a device that takes exactly the decisions in this file, as do fault rules." placeholder:"FILE" complete:"file"`
	Sanitize             sanitizeFlag  `help:"Report misuse of verbs by the program; see docs/sanitizer.md. CHECKS are names of rules, all, or -RULE, separated by commas. Default: all but ${off_rules}. With log, reports do not change the exit code, else 66; with abort, the first report ends the program. Doorbells are not native." placeholder:"CHECKS" complete:"none"`
	SanitizeReport       string        `help:"With --sanitize, also write the reports to this file, as JSON, or as SARIF if its name ends in .sarif." placeholder:"FILE" complete:"file"`
	SanitizeSuppressions string        `help:"With --sanitize, ignore the reports that this file lists: lines RULE or RULE:PROGRAM, both may be patterns." placeholder:"FILE" complete:"file"`
	Program              []string      `arg:"" optional:"" passthrough:"" help:"Program and its arguments, after --." complete:"program"`

	reports   *reportPrinter // nil without --sanitize
	decisions *decisionLog   // nil without --weak-log and --replay
	traceTo   io.WriteCloser // destination of the trace
	// With --private, the control socket for commands of the program, and its removal. "" and nil if it could not be made.
	privateSocket string
	removeSocket  func()
	serviceDone   <-chan struct{} // closed when the service has finished with the program; nil before its start
}

// runCmd uses the exit codes of env(1) and the shells.
const (
	exitCannotRun = 126
	exitNotFound  = 127
)

func (r *runCmd) Help() string {
	return `The program runs as it is, with this terminal, environment, directory and user. It uses the user's running
service, or starts one that ends when it has been idle. Exit code: the program's; 128 + N if signal N ended it;
66 after a report of --sanitize; of --weak=search, that of a failed run, or 124 for a run that took too long; 125 for a failure of verbena's own, such as a --capture file that could not be written; 126 if the program cannot be run; 127 if it is not found.`
}

func (r *runCmd) Run(c *cli) error {
	argv := r.Program
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	} else if len(argv) > 0 && strings.HasPrefix(argv[0], "-") {
		return fmt.Errorf("run: unknown flag %s; see verbena run --help", argv[0])
	}
	if len(argv) == 0 {
		return errors.New("run: no program given: verbena run [FLAGS] -- PROGRAM [ARGS]")
	}
	if !r.Private && len(r.commandLineArgs()) > 0 {
		return errors.New("run: --link, --wire, --no-probe, --doorbells, --no-loopback and --seed need a private service: add --private, or give the flags to `verbena serve`")
	}
	if r.Weak.search > 0 && r.Replay == "" {
		return r.searchWeak(argv)
	}
	path, err := exec.LookPath(argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		fmt.Fprintf(os.Stderr, "verbena: run: %s: %v\n", replaceControlChars(argv[0]), errors.Unwrap(err))
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return exitCodeError(exitNotFound)
		}
		return exitCodeError(exitCannotRun)
	}
	if err := supervisor.Probe(); err != nil {
		return err
	}
	if err := r.checkWeak(); err != nil {
		return err
	}
	// --replay and --weak-log may name one file, which is read before it is written.
	if err := checkDistinctFiles([]namedFile{{"--trace", r.Trace.file}, {"--trace-file", r.TraceFile},
		{"--capture", r.Capture}, {"--weak-log", r.WeakLog}, {"--sanitize-report", r.SanitizeReport}},
		[]namedFile{{"--sanitize-suppressions", r.SanitizeSuppressions}}); err != nil {
		return err
	}
	if r.Trace.on {
		if r.traceTo, err = r.Trace.open(); err != nil {
			return err
		}
	}
	if r.reports, err = r.newReportPrinter(); err != nil {
		return err
	}
	if r.decisions, err = newDecisionLog(r.WeakLog, r.Replay); err != nil {
		r.reports.abandon()
		return fmt.Errorf("run %w", err)
	}
	if text := missingProviderMessage("/"); text != "" {
		fmt.Fprintln(os.Stderr, "verbena:", text)
	}
	// A service may be about to end when it is idle, after `verbena stop`, or during a takeover.
	const attempts = 5
	for i := 1; ; i++ {
		err := r.startProgram(c, path, argv)
		var code exitCodeError
		switch {
		case errors.As(err, &code):
			return err
		case i == attempts || !ctl.IsEnding(err):
			r.reports.abandon()
			r.decisions.abandon()
			return err
		}
		time.Sleep(startRetryPause)
	}
}

// startRetryPause is the pause before the next attempt, in which an ending service can release its control socket.
const startRetryPause = 50 * time.Millisecond

// startProgram starts the program under the supervision of a service.
func (r *runCmd) startProgram(c *cli, path string, argv []string) (result error) {
	client, err := r.connectOrStartService(c)
	if r.removeSocket != nil {
		defer r.removeSocket()
	}
	if err != nil {
		return err
	}
	defer client.Close()
	if err := r.decisions.begin(client.Client, r.Weak.seed); err != nil {
		return err
	}
	defer func() {
		if err := r.decisions.finish(os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "verbena:", err)
			if result == exitCodeError(0) {
				result = exitCodeError(exitFailure)
			}
		}
	}()
	if r.TraceFile != "" {
		trace, err := startRequestTrace(client.Client, r.TraceFile)
		if err != nil {
			return err
		}
		defer func() {
			code := exitCodeError(0)
			if !errors.As(result, &code) {
				trace.abandon() // the program was not started
				return
			}
			r.awaitTraceEnd()
			if err := trace.write(os.Stderr, nil); err != nil {
				fmt.Fprintln(os.Stderr, "verbena:", err)
				if code == 0 {
					result = exitCodeError(exitFailure)
				}
			}
		}()
	}
	if r.Capture == "" {
		return r.launchProgram(client, path, argv)
	}
	rec, err := startRecording(client, r.Capture, ctl.Capture{})
	if err != nil {
		return err
	}
	err = r.launchProgram(client, path, argv)
	if cerr := rec.finish(); cerr != nil {
		fmt.Fprintln(os.Stderr, "verbena:", cerr)
		if err == exitCodeError(0) {
			return exitCodeError(exitFailure)
		}
	}
	return err
}

// awaitTraceEnd waits until the service has ended the trace of work requests, which it does after the last process of
// the program. A remaining process does not delay the trace.
func (r *runCmd) awaitTraceEnd() {
	timer := time.NewTimer(traceEndTimeout)
	defer timer.Stop()
	select {
	case <-r.serviceDone:
	case <-timer.C:
	}
}

func (r *runCmd) connectOrStartService(c *cli) (*service.Client, error) {
	if !r.Private {
		return c.startService()
	}
	if _, err := r.linkSpecs(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	args := r.commandLineArgs()
	loc, remove, err := newPrivateLocation()
	if err == nil {
		r.privateSocket, r.removeSocket = loc.Socket, remove
		args = append(args, "--listen", "--socket="+loc.Socket)
	} else {
		fmt.Fprintln(os.Stderr, "verbena: commands of the program cannot reach its service:", err)
	}
	return service.StartPrivate(self, os.Stderr, args...)
}

// newPrivateLocation returns a location in a new directory, and a function that removes the directory.
func newPrivateLocation() (loc ctl.Location, remove func(), err error) {
	dir, err := os.MkdirTemp("", "verbena-private-")
	if err != nil {
		return loc, nil, fmt.Errorf("make the directory of the control socket: %w", err)
	}
	return ctl.Location{Socket: filepath.Join(dir, "socket")}, func() { os.RemoveAll(dir) }, nil
}

func (r *runCmd) launchProgram(client *service.Client, path string, argv []string) (err error) {
	var attached *ctl.AttachResult
	var lost <-chan struct{}
	var trace *traceCopier
	defer func() {
		if trace == nil {
			return
		}
		terr := trace.finish()
		if r.reports != nil {
			found, rerr := r.reports.finish()
			terr = errors.Join(terr, rerr)
			var code exitCodeError
			if trace.unfinished {
				fmt.Fprintln(os.Stderr, "verbena: sanitizer: other processes of the program go on, and are not checked any more")
			}
			if found && !r.Sanitize.log && errors.As(err, &code) {
				err = exitCodeError(sanitizeExitCode)
			}
		}
		if err != exitCodeError(0) {
			for _, line := range trace.causes {
				fmt.Fprintln(os.Stderr, "verbena: explain:", line)
			}
			if r.Explain && trace.unfinished {
				fmt.Fprintln(os.Stderr, "verbena: explain: other processes of the program go on: `verbena explain` shows the causes")
			}
		}
		if terr != nil {
			fmt.Fprintln(os.Stderr, "verbena:", terr)
			if err == exitCodeError(0) {
				err = exitCodeError(exitFailure)
			}
		}
	}()
	launch := &supervisor.Launch{
		Path:  path,
		Args:  argv,
		Env:   os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	}
	if r.privateSocket != "" {
		launch.Env = slices.DeleteFunc(launch.Env, func(v string) bool { return strings.HasPrefix(v, "VERBENA_SOCKET=") })
		launch.Env = append(launch.Env, "VERBENA_SOCKET="+r.privateSocket)
	}
	tracer, done := serviceTracer(client)
	defer done()
	launch.Handover = func(listener *os.File) (err error) {
		attached, err = client.Attach(
			ctl.Attach{Args: argv, Trace: r.Trace.on, Explain: r.Explain, Weak: r.weakRequest(),
				Sanitize: r.Sanitize.request()}, listener)
		if err != nil {
			return err
		}
		if r.weakRequest() != nil && !attached.Weak {
			return errors.New("run: the running service is an older build without --weak: end it with `verbena stop`")
		}
		if r.Sanitize.on && !attached.Sanitize {
			return errors.New("run: the running service is an older build without --sanitize: end it with `verbena stop`")
		}
		if r.Trace.on || r.Explain || r.Sanitize.on {
			if attached.Trace == nil {
				return errors.New("run: the running service is an older build without --trace or --explain: end it with `verbena stop`")
			}
			to := r.traceTo
			if to == nil {
				to = nopCloser{io.Discard}
			}
			if r.reports != nil {
				r.reports.foreign = client.PID() == 0
			}
			trace = startTracing(attached.Trace, to, r.reports)
		}
		launch.AdoptOrphans = attached.Helped
		if attached.Traced {
			launch.Tracer = tracer
		}
		lost = client.Serve(noticePrinter{})
		r.serviceDone = lost
		launch.Lost = lost
		return nil
	}
	prog, err := supervisor.Start(launch)
	var start *supervisor.ExecError
	if errors.As(err, &start) {
		fmt.Fprintf(os.Stderr, "verbena: run: %v\n", explainExecError(start))
		if errors.Is(err, os.ErrNotExist) {
			return exitCodeError(exitNotFound)
		}
		return exitCodeError(exitCannotRun)
	}
	if err != nil {
		return err
	}
	// The program was executed, and this process will execute no other program.
	if err := confine.FilterThreads(); err != nil && !errors.Is(err, unix.ENOTSUP) {
		fmt.Fprintln(os.Stderr, "verbena:", err)
	}
	session, sessionErr := client.SessionName(attached)
	prog.Guard(lost, func() {
		fmt.Fprintln(os.Stderr, "verbena: the service has ended; RDMA calls of the program fail from now on")
		err := sessionErr
		if err == nil {
			files := queueFilePattern{session: session}
			err = abandonQueueFiles(files.open())
			if !r.Outlive {
				go endHolders(files)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "verbena: complete the program's pending requests:", err)
		}
	})
	return exitCodeError(prog.Wait())
}

// noticePrinter implements the service's requests to this command. (ctl.Helper)
type noticePrinter struct{ supervisor.Ancestor }

// Notice prints a message of the service for the user of the program.
func (noticePrinter) Notice(text string) {
	fmt.Fprintln(os.Stderr, "verbena:", replaceControlChars(text))
}

// serviceTracer returns the service's process, which the program should permit to access its memory, or nil if the
// process is not visible in this pid namespace. serviceTracer must be called before the handover of the program: the
// service's answer to the handover proves that the process number was not reused. The caller must call done
// afterwards.
func serviceTracer(client *service.Client) (_ *supervisor.Tracer, done func()) {
	if client.PID() == 0 {
		return nil, func() {}
	}
	fd, err := unix.PidfdOpen(client.PID(), 0)
	if err != nil {
		return nil, func() {}
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	return &supervisor.Tracer{PID: client.PID(), Pidfd: pidfd, Exec: "/proc/self/exe"}, func() { pidfd.Close() }
}

// explainExecError returns an error that names the interpreter if the program exists and its interpreter does not.
func explainExecError(e *supervisor.ExecError) error {
	if !errors.Is(e.Err, fs.ErrNotExist) {
		return e
	}
	if interpreter := interpreterOf(e.Path); interpreter != "" {
		return fmt.Errorf("run %s: its interpreter %s cannot be executed: %w", e.Path, interpreter, e.Err)
	}
	return e
}

// interpreterOf returns the interpreter named by a script or a dynamically linked program, or "".
func interpreterOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const longest = 256 // the kernel reads the same number of bytes (BINPRM_BUF_SIZE)
	head := make([]byte, longest)
	n, _ := io.ReadFull(f, head)
	if line, ok := strings.CutPrefix(string(head[:n]), "#!"); ok {
		line, _, _ = strings.Cut(line, "\n")
		if words := strings.Fields(line); len(words) > 0 {
			return replaceControlChars(words[0])
		}
		return ""
	}
	program, err := elf.NewFile(f)
	if err != nil {
		return ""
	}
	for _, p := range program.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, min(p.Filesz, longest))
		n, _ := p.ReadAt(name, 0)
		return replaceControlChars(strings.TrimRight(string(name[:n]), "\x00"))
	}
	return ""
}

// abandonQueueFiles completes the outstanding requests of the program with flush errors, and makes its native doorbells
// fail. abandonQueueFiles closes the queue files.
func abandonQueueFiles(files []*os.File) error {
	errs := []error{failDoorbells(files)}
	for _, f := range files {
		errs = append(errs, orphan.Flush(f))
		f.Close()
	}
	return errors.Join(errs...)
}

// failDoorbellsTimeout limits the time for which a program can delay failDoorbells, by a write from memory that does
// not answer.
const failDoorbellsTimeout = time.Second

// failDoorbells makes native doorbells fail, because no thread polls the queues any more.
func failDoorbells(files []*os.File) (err error) {
	barred := make(chan error, 1)
	go func() {
		var errs []error
		for _, f := range files {
			errs = append(errs, shm.DenyWrites(f))
		}
		barred <- errors.Join(errs...)
	}()
	select {
	case err = <-barred:
		if err != nil {
			err = fmt.Errorf("make doorbells fail: %w", err)
		}
	case <-time.After(failDoorbellsTimeout):
		err = fmt.Errorf("make doorbells fail: timed out after %v: a write of the program does not end", failDoorbellsTimeout)
	}
	return err
}
