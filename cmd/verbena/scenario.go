package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/reqtrace"
	"verbena/scenario"
	"verbena/service"
	"verbena/service/web"
)

type scenarioRunCmd struct {
	Files    []string          `arg:"" name:"file" help:"Scenario files." complete:"file"`
	Set      map[string]string `help:"Override a value of the file's set." placeholder:"NAME=VALUE" complete:"none"`
	Without  []string          `help:"Omit the action with this name, and the actions that follow it. The scenario should then fail." placeholder:"ACTION" sep:"none" complete:"none"`
	Seed     uint64            `help:"Use this seed instead of the seed in the file." placeholder:"N" complete:"none"`
	JUnit    string            `name:"junit" help:"Write a JUnit report." placeholder:"FILE" complete:"file"`
	Timeline string            `help:"Write a timeline of the run, as SVG. With several scenarios, FILE is a directory." placeholder:"FILE" complete:"file"`
	Trace    string            `help:"Write a trace of the work requests, for https://ui.perfetto.dev: see docs/explain.md. With several scenarios, FILE is a directory." placeholder:"FILE" complete:"file"`
	Report   string            `help:"Write all observations, as JSON. With several scenarios, FILE is a directory." placeholder:"FILE" complete:"file"`
	HTML     string            `name:"html" help:"Write a page with the timeline, the checks and the output of programs, as one HTML file. With several scenarios, FILE is a directory." placeholder:"FILE" complete:"file"`
	Web      *string           `help:"Serve a web page at HOST:PORT with the scenario and its devices while it runs, as verbena serve --web. The printed address has a token." placeholder:"ADDR" complete:"none"`
	WeakLog  string            `help:"Write the random decisions of the faults and links to this file, for --replay. With several scenarios, FILE is a directory." placeholder:"FILE" complete:"file"`
	Replay   string            `help:"Take the random decisions of the faults and links from this file." placeholder:"FILE" complete:"file"`
	Compare  string            `help:"Print the differences from an earlier run, given by its --report. The exit code is 1 if an action differs." placeholder:"FILE" complete:"file"`
	Quiet    bool              `short:"q" help:"Do not print progress."`
}

func (s *scenarioRunCmd) Help() string {
	return `Runs each scenario on a service of its own, with its devices, and prints what was expected and did not happen. Exit code: 0
if all was as expected, 1 if not, 125 if a scenario could not be run. docs/failover.md shows how scenarios are written.

Examples:
  verbena scenario run flap.yaml
  verbena scenario run flap.yaml --set PROGRAM=./mine --timeline flap.svg --junit flap.xml
  verbena scenario run flap.yaml --html flap.html --web 127.0.0.1:9402
  verbena scenario run flap.yaml --report a.json; verbena scenario run flap.yaml --compare a.json
  verbena scenario run flap.yaml --without flap      a scenario that passes without what it does shows nothing`
}

func (s *scenarioRunCmd) Run(*cli) error {
	if (s.Compare != "" || s.Replay != "") && len(s.Files) > 1 {
		return errors.New("scenario run: --compare and --replay need exactly one scenario")
	}
	var earlier *scenario.Result
	if s.Compare != "" {
		b, err := os.ReadFile(s.Compare)
		if err == nil {
			err = json.Unmarshal(b, &earlier)
		}
		if err != nil {
			return fmt.Errorf("scenario run: --compare: %s: %w", s.Compare, err)
		}
	}
	if err := s.checkDistinctOutputs(); err != nil {
		return fmt.Errorf("scenario run: %w", err)
	}
	var files []*scenario.File
	for _, path := range s.Files {
		f, err := scenario.Load(path, s.Set)
		if err != nil {
			return fmt.Errorf("scenario run: %w", err)
		}
		if s.Seed != 0 {
			f.Seed = s.Seed
		}
		for _, a := range s.Without {
			if err := f.RemoveAction(a); err != nil {
				return fmt.Errorf("scenario run: --without: %s: %w", path, err)
			}
		}
		files = append(files, f)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	page, err := s.servePage()
	if err != nil {
		return fmt.Errorf("scenario run: %w", err)
	}
	defer page.close()
	code := 0
	var results []*scenario.Result
	for i, f := range files {
		r, err := s.runScenario(ctx, f, s.Files[i], page)
		if r == nil { // the reports must include a failed scenario
			r = scenario.NewFailedResult(f, err)
		}
		if show := page.observer(); show != nil {
			show(r)
		}
		results = append(results, r)
		if err != nil {
			code = exitFailure
		} else if !r.Passed {
			code = max(code, 1)
		}
		for _, err := range []error{r.WriteText(os.Stdout), s.writeOutputs(s.Files[i], r)} {
			if err != nil { // a failed scenario does not stop the following scenarios
				fmt.Fprintln(os.Stderr, "verbena: scenario run:", errorWithRemedy(err))
				code = exitFailure
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	if earlier != nil && len(results) == 1 {
		same, free := results[0].Compare(earlier)
		printDifferences(os.Stdout, same, free)
		if len(same) > 0 {
			code = max(code, 1)
		}
	}
	if s.JUnit != "" {
		if err := writeFile(s.JUnit, func(w io.Writer) error { return scenario.WriteJUnit(w, results) }); err != nil {
			return fmt.Errorf("scenario run: %w", err)
		}
	}
	return exitCodeError(code)
}

func printDifferences(w io.Writer, same, free []string) {
	for _, d := range same {
		fmt.Fprintf(w, "DIFFERS  %s\n", d)
	}
	for _, d := range free {
		fmt.Fprintf(w, "differs  %s\n", d)
	}
	if len(same) == 0 {
		fmt.Fprintf(w, "the same actions at the same moments; %d other differences\n", len(free))
	}
}

// scenarioBaseName returns the base name of a scenario's pictures and reports.
func scenarioBaseName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}

// checkDistinctOutputs returns an error if the picture or report of one scenario would overwrite that of another
// scenario.
func (s *scenarioRunCmd) checkDistinctOutputs() error {
	if !slices.ContainsFunc(s.outputs(), func(o scenarioOutput) bool { return o.path != "" }) {
		return nil
	}
	of := map[string]string{}
	for _, path := range s.Files {
		if before, ok := of[scenarioBaseName(path)]; ok {
			return fmt.Errorf("%s and %s would both write %s.*: run them one by one, or rename one", before, path,
				scenarioBaseName(path))
		}
		of[scenarioBaseName(path)] = path
	}
	return nil
}

// scenarioOutput is a file that a scenario writes.
type scenarioOutput struct {
	path  string // file, or directory if there are several scenarios; empty if not requested
	ext   string
	write func(*scenario.Result, io.Writer) error // nil for the trace
}

func (s *scenarioRunCmd) outputs() []scenarioOutput {
	return []scenarioOutput{
		s.traceOutput(),
		s.logOutput(),
		{s.Timeline, ".svg", (*scenario.Result).WriteTimeline},
		{s.HTML, ".html", func(r *scenario.Result, w io.Writer) error { return web.WriteReport(w, r) }},
		{s.Report, ".json", func(r *scenario.Result, w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(r)
		}},
	}
}

// traceOutput returns the output for the trace. The trace is written before the service of the scenario ends.
func (s *scenarioRunCmd) traceOutput() scenarioOutput {
	return scenarioOutput{s.Trace, ".pftrace", nil}
}

// logOutput returns the output for the decisions, which are written before the service of the scenario ends.
func (s *scenarioRunCmd) logOutput() scenarioOutput {
	return scenarioOutput{s.WeakLog, ".decisions", nil}
}

// newDecisionLog begins the log of a scenario, or returns nil without --weak-log and --replay.
func (s *scenarioRunCmd) newDecisionLog(client *service.Client, path string, seed uint64) (*decisionLog, error) {
	log := ""
	if s.WeakLog != "" {
		var err error
		if log, err = s.outputName(s.logOutput(), path); err != nil {
			return nil, err
		}
	}
	l, err := newDecisionLog(log, s.Replay)
	if err == nil {
		err = l.begin(client.Client, seed)
	}
	if err != nil {
		l.abandon()
		return nil, fmt.Errorf("scenario run: %w", err)
	}
	return l, nil
}

// outputName returns the name of an output file of one scenario. It creates the directory, if there is one.
func (s *scenarioRunCmd) outputName(o scenarioOutput, path string) (string, error) {
	if len(s.Files) == 1 {
		return o.path, nil
	}
	return filepath.Join(o.path, scenarioBaseName(path)+o.ext), os.MkdirAll(o.path, 0o777)
}

// writeOutputs writes the requested output files of one scenario.
func (s *scenarioRunCmd) writeOutputs(path string, r *scenario.Result) error {
	for _, o := range s.outputs() {
		if o.path == "" || o.write == nil {
			continue
		}
		name, err := s.outputName(o, path)
		if err != nil {
			return err
		}
		if err := writeFile(name, func(w io.Writer) error { return o.write(r, w) }); err != nil {
			return err
		}
	}
	return nil
}

// scenarioPage is the web page of running scenarios. The zero value has no page.
type scenarioPage struct {
	listener *web.Listener
	served   chan error
	shown    web.Scenario
	service  atomic.Pointer[serviceRequester] // the service of the scenario in progress; nil between scenarios
}

// servePage serves a page, if requested.
func (s *scenarioRunCmd) servePage() (*scenarioPage, error) {
	p := &scenarioPage{}
	if s.Web == nil {
		return p, nil
	}
	var err error
	if p.listener, err = web.Listen(*s.Web); err != nil {
		return nil, err
	}
	fmt.Fprint(os.Stderr, web.Notice(*s.Web, p.listener.URL()))
	p.served = make(chan error, 1)
	info, _ := debug.ReadBuildInfo()
	go func() {
		p.served <- web.Serve(p.listener, web.Options{Source: p, Version: versionText(info), Scenario: &p.shown})
	}()
	return p, nil
}

// Do implements web.Source.
func (p *scenarioPage) Do(r *ctl.Request) (*ctl.Response, error) {
	l := p.service.Load()
	if l == nil {
		return nil, errors.New("no scenario is running")
	}
	return l.Do(r)
}

// publish shows the result so far.
func (p *scenarioPage) publish(r *scenario.Result) {
	if err := p.shown.Publish(r); err != nil {
		fmt.Fprintln(os.Stderr, "verbena: scenario run: web page:", err)
	}
}

// observer returns the function that shows the result so far, or nil without a page.
func (p *scenarioPage) observer() func(*scenario.Result) {
	if p.listener == nil {
		return nil
	}
	return p.publish
}

// lastRefresh is the time in which open pages get the last result before the page ends.
const lastRefresh = 1500 * time.Millisecond

func (p *scenarioPage) close() {
	if p.listener == nil {
		return
	}
	time.Sleep(lastRefresh)
	p.listener.Close()
	if err := <-p.served; err != nil {
		fmt.Fprintln(os.Stderr, "verbena: scenario run:", err)
	}
}

// runScenario runs a scenario on a private service.
func (s *scenarioRunCmd) runScenario(ctx context.Context, f *scenario.File, path string, page *scenarioPage) (
	*scenario.Result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	loc, remove, err := newPrivateLocation()
	if err != nil {
		return nil, err
	}
	defer remove()
	args := []string{"--listen", "--socket=" + loc.Socket, "--seed=" + strconv.FormatUint(f.Seed, 10)}
	if f.Wire {
		args = append(args, "--wire")
	}
	for _, d := range f.Devices {
		where := d.If
		if len(d.Addr) > 0 {
			where = strings.Join(d.Addr, ",")
		}
		args = append(args, "--link="+d.Name+"="+where)
	}
	client, err := service.StartPrivate(self, os.Stderr, args...) // the service ends with this process, too
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := client.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "verbena: scenario run: end the service:", err)
		}
		client.Close()
	}()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the parent of the programs' orphans: %w", err)
	}
	defer killLeftoverProcesses(client.PID())
	trace, err := s.startTrace(client, path)
	if err != nil {
		return nil, err
	}
	decisions, err := s.newDecisionLog(client, path, f.Seed)
	if err != nil {
		return nil, err
	}
	page.service.Store(&serviceRequester{loc})
	defer page.service.Store(nil)
	r := scenario.Runner{
		Lab:     serviceRequester{loc},
		Observe: page.observer(),
		Starter: programStarter{self, loc.Socket},
		Listens: func(port int) bool { return waitEndpoint{port: uint16(port)}.isListening() },
	}
	if !s.Quiet {
		fmt.Fprintf(os.Stderr, "verbena: scenario %s\n", f.Name)
		r.Progress = progressPrinter(os.Stderr)
	}
	res, err := r.Run(ctx, f)
	return res, errors.Join(err, decisions.finish(os.Stderr), s.writeTrace(client, trace, res))
}

// startTrace begins the trace of a scenario, or returns nil without --trace.
func (s *scenarioRunCmd) startTrace(client *service.Client, path string) (*requestTraceFile, error) {
	if s.Trace == "" {
		return nil, nil
	}
	name, err := s.outputName(s.traceOutput(), path)
	if err != nil {
		return nil, err
	}
	return startRequestTrace(client.Client, name)
}

// writeTrace writes the trace of a scenario, with its actions and the ends of its programs.
func (s *scenarioRunCmd) writeTrace(client *service.Client, trace *requestTraceFile, res *scenario.Result) error {
	if trace == nil {
		return nil
	}
	ended := client.EndRequestTrace()
	if ended != nil {
		ended = fmt.Errorf("end of the trace: %w", ended) // the file has the events until then
	}
	var marks []reqtrace.Mark
	mark := func(at time.Duration, text string) {
		marks = append(marks, reqtrace.Mark{Time: res.Began.Add(at), Text: text})
	}
	for _, a := range res.Actions {
		if a.Done {
			mark(a.At, "action: "+a.What)
		}
	}
	for _, p := range res.Programs {
		if p.Exit != nil {
			mark(p.End, p.Name+": "+p.Exit.String())
		}
	}
	return errors.Join(ended, trace.write(os.Stderr, marks))
}

// progressPrinter prints the events of a run, one per line.
func progressPrinter(w io.Writer) func(scenario.ProgressEvent) {
	return func(m scenario.ProgressEvent) {
		switch m.Kind {
		case scenario.MarkStart:
			fmt.Fprintf(w, "%8.3f  start   %s: %s\n", m.At.Seconds(), m.Subject, m.Text)
		case scenario.MarkEvent:
			fmt.Fprintf(w, "%8.3f  event   %s: %s\n", m.At.Seconds(), m.Subject, m.Text)
		case scenario.MarkAction:
			fmt.Fprintf(w, "%8.3f  action  %s\n", m.At.Seconds(), m.Text)
		default:
			fmt.Fprintf(w, "%8.3f  %s: %s\n", m.At.Seconds(), m.Subject, replaceControlChars(m.Text))
		}
	}
}

// serviceRequester sends each request on a separate connection, because a request may block for a long time.
type serviceRequester struct{ loc ctl.Location }

func (l serviceRequester) Do(r *ctl.Request) (*ctl.Response, error) {
	c, err := ctl.Dial(l.loc)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Do(r)
}

// programStarter starts programs by `verbena run`. Each program gets a terminal, so that stdio does not delay its
// output by buffering.
type programStarter struct{ self, socket string }

func (s programStarter) Start(p *scenario.Program, line func(string)) (scenario.Process, error) {
	master, tty, err := openTerminal()
	if err != nil { // for example in a chroot without /dev/pts
		if master, tty, err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	defer tty.Close()
	c := exec.Command(s.self, append([]string{"run", "--socket", s.socket, "--"}, p.Run...)...)
	c.Env = append(os.Environ(), "TERM=dumb")
	for k, v := range p.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	c.Stdout, c.Stderr = tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		master.Close()
		return nil, err
	}
	x := &launchedProgram{cmd: c, master: master, read: make(chan struct{})}
	go func() {
		defer close(x.read)
		readLines(master, line)
	}()
	return x, nil
}

// maxLineLength is the maximum length in bytes of a line read from a program. readLines truncates longer lines. A
// scenario keeps fewer bytes.
const maxLineLength = 4096

// readLines calls line with each line of r until r ends. A read of a terminal returns EIO after the other end was
// closed.
func readLines(r io.Reader, line func(string)) {
	in := bufio.NewReaderSize(r, maxLineLength)
	for within := false; ; {
		text, more, err := in.ReadLine()
		if err != nil {
			return
		}
		if !within {
			line(strings.TrimRight(string(text), "\r"))
		}
		within = more
	}
}

// openTerminal returns both ends of a terminal that does not modify its output.
func openTerminal() (master, tty *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	var n uint32
	conn, err := master.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var ioctl error
	if err = conn.Control(func(fd uintptr) {
		if ioctl = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioctl == nil {
			n, ioctl = unix.IoctlGetUint32(int(fd), unix.TIOCGPTN)
		}
	}); err != nil {
		return nil, nil, err
	}
	if err = ioctl; err != nil {
		return nil, nil, err
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	t, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, t)
	}
	if err != nil {
		tty.Close()
	}
	return master, tty, err
}

// launchedProgram is a program that runs under a launcher.
type launchedProgram struct {
	cmd    *exec.Cmd
	master *os.File
	read   chan struct{} // closed after the last output was read
}

// outputTimeout limits the wait for output of a program's remaining processes.
const outputTimeout = time.Second

func (p *launchedProgram) Wait() scenario.Exit {
	_ = p.cmd.Wait() // state holds the exit status
	select {
	case <-p.read:
	case <-time.After(outputTimeout):
		p.master.SetReadDeadline(time.Now())
		<-p.read
	}
	p.master.Close()
	s := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if s.Signaled() {
		return scenario.Exit{Signal: s.Signal()}
	}
	const bySignal = 128 // the exit code that `verbena run` would return
	if code := s.ExitStatus(); code > bySignal && code < bySignal+65 {
		return scenario.Exit{Signal: syscall.Signal(code - bySignal)}
	} else {
		return scenario.Exit{Code: code}
	}
}

// programStartTimeout limits the time in which a launcher must start its program.
const programStartTimeout = 5 * time.Second

// Signal sends the signal to the program itself, which is the first child of its launcher. Signal waits until the
// launcher has started the program.
func (p *launchedProgram) Signal(sig syscall.Signal) error {
	for deadline := time.Now().Add(programStartTimeout); ; time.Sleep(10 * time.Millisecond) {
		if child := firstChildPID(p.cmd.Process.Pid); child != 0 {
			return unix.Kill(child, sig)
		}
		if err := unix.Kill(p.cmd.Process.Pid, 0); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("the launcher has not started the program")
		}
	}
}

// firstChildPID returns the child that a process started first, on any of its threads, or 0 without children. Later
// children are orphans that the process has adopted.
func firstChildPID(pid int) (child int) {
	var first uint64
	for _, c := range childPIDs(pid) {
		if at, ok := processStartTime(c); ok && (child == 0 || at < first || at == first && c < child) {
			child, first = c, at
		}
	}
	return child
}

// childPIDs returns the process numbers of a process's children.
func childPIDs(pid int) (list []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		b, _ := os.ReadFile(file) // the thread may have ended
		for _, word := range strings.Fields(string(b)) {
			if c, err := strconv.Atoi(word); err == nil {
				list = append(list, c)
			}
		}
	}
	return list
}

// killLeftoverProcesses kills and reports the remaining processes of a scenario's programs. This process adopts the
// programs' orphans, so the remaining processes are all of its children except the service.
func killLeftoverProcesses(service int) {
	said := map[int]bool{}
	for range 1000 { // a killed process leaves children, and its end may take long
		left := slices.DeleteFunc(childPIDs(os.Getpid()), func(pid int) bool { return pid == service })
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if n, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); n != 0 {
				continue
			}
			if !said[pid] {
				fmt.Fprintf(os.Stderr, "verbena: scenario run: %s (process %d) was still running: killed\n",
					replaceControlChars(strings.TrimSpace(string(name))), pid)
				said[pid] = true
			}
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// processStartTime returns the start time of a process, in clock ticks since boot.
func processStartTime(pid int) (ticks uint64, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the third field on, the state
	const starttime = 22 - 3
	if len(fields) <= starttime {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[starttime], 10, 64)
	return ticks, err == nil
}

func (p *launchedProgram) Kill() { _ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) }

type scenarioCheckCmd struct {
	Files []string          `arg:"" name:"file" help:"Scenario files." complete:"file"`
	Set   map[string]string `help:"Override a value of the file's set." placeholder:"NAME=VALUE" complete:"none"`
}

func (s *scenarioCheckCmd) Run() error {
	for _, path := range s.Files {
		f, err := scenario.Load(path, s.Set)
		if err != nil {
			return fmt.Errorf("scenario check: %w", err)
		}
		fmt.Printf("%s: %s: %d devices, %d programs, %d actions\n", path, f.Name, len(f.Devices), len(f.Programs),
			len(f.Actions))
	}
	return nil
}
