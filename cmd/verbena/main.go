// Command verbena runs unmodified RDMA programs on software devices in user space, and manages the service of these
// devices. See the README, and `verbena --help`.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/service"
	"verbena/supervisor"
)

type cli struct {
	Socket  string `help:"Control socket of the service; default: one per user and network namespace." placeholder:"PATH" env:"VERBENA_SOCKET" complete:"file"`
	Service string `name:"service-user" help:"Also trust a service of this user. It can access all memory and files of your programs. Services of root and of your own user are always trusted." placeholder:"USER" complete:"user"`

	Version versionFlag `help:"Print the version of this command, and exit."`

	Run     runCmd   `cmd:"" help:"Run a program; it sees the service's devices below /dev/infiniband."`
	Serve   serveCmd `cmd:"" help:"Run the service, in the foreground or with --daemon in the background."`
	Wait    waitCmd  `cmd:"" help:"Wait until a service is ready, a program listens, or a program has opened a device."`
	Stop    stopCmd  `cmd:"" help:"End the running service, and wait until it has ended; programs that still use it get errors."`
	Capture struct {
		Record captureCmd     `cmd:"" help:"Record packets in a pcapng file." default:"withargs"`
		Show   captureShowCmd `cmd:"" help:"Show the connections in a capture file, and their packets, as text or as a picture."`
		Verify verifyCmd      `cmd:"" help:"Check the ICRC of every RoCEv2 packet in capture files."`
	} `cmd:"" help:"Record packets in a pcapng file, and show or check the packets of a file."`
	Link struct {
		Add  linkAddCmd  `cmd:"" help:"Make a device."`
		Del  linkDelCmd  `cmd:"" help:"Remove a device; programs that use it get errors."`
		Set  linkSetCmd  `cmd:"" help:"Take a device's link down or up, and limit, delay or drop the packets that it sends."`
		Show linkShowCmd `cmd:"" help:"List the devices with their GIDs." default:"withargs"`
	} `cmd:"" help:"Devices."`
	Res struct {
		Show resShowCmd `cmd:"" help:"List contexts, PDs, MRs, CQs and QPs by process, and the resources of users." default:"withargs"`
	} `cmd:"" help:"Resources of programs."`
	QP struct {
		Show  qpShowCmd  `cmd:"" help:"List the queue pairs with their protocol state." default:"withargs"`
		Trace qpTraceCmd `cmd:"" help:"Print the latest protocol events of a queue pair."`
	} `cmd:"" name:"qp" help:"Queue pairs and their protocol state."`
	Explain explainCmd `cmd:"" help:"Explain failures: why a completion, call, packet or connection failed, and at which end."`
	Stat    struct {
		Show statShowCmd `cmd:"" help:"List the counters of devices." default:"withargs"`
	} `cmd:"" help:"Counters: packets, errors, and the reasons for which packets were dropped."`
	Dev struct {
		Reset  devResetCmd  `cmd:"" help:"Reset a device: programs that use it get the fatal event and errors, and new programs get the recovered device."`
		Unplug devUnplugCmd `cmd:"" help:"Remove a device as if it had been pulled out."`
		Plug   devPlugCmd   `cmd:"" help:"Plug in an unplugged device, or make unreachable hardware answer."`
		Hang   devHangCmd   `cmd:"" help:"Make a device stop working without notice, until a reset."`
		Event  devEventCmd  `cmd:"" help:"Raise an asynchronous event as if it had happened."`
		Show   devShowCmd   `cmd:"" help:"List the devices with their states and resets." default:"withargs"`
	} `cmd:"" help:"Reset, unplug and hang devices, and raise their events."`
	Scenario struct {
		Run   scenarioRunCmd   `cmd:"" help:"Run failover tests from files: devices, programs, actions with their times, and expected results."`
		Check scenarioCheckCmd `cmd:"" help:"Check scenario files without running them."`
	} `cmd:"" help:"Failover tests."`
	Top         topCmd        `cmd:"" help:"Show devices, processes and rates, live."`
	Devinfo     devinfoCmd    `cmd:"" help:"Print the attributes of the RDMA devices that a program sees here."`
	Pingpong    pingpongCmd   `cmd:"" help:"Send a message back and forth between two programs, or within this process, and measure the round trips." set:"op=send"`
	Perf        perfCmd       `cmd:"" help:"Measure latency, bandwidth and message rate between two programs, or within this process." set:"op=write"`
	Completion  completionCmd `cmd:"" help:"Print a script that completes command lines of verbena in a shell."`
	ShowVersion versionCmd    `cmd:"" name:"version" help:"Print the version of this command."`
	Debug       struct {
		Pprof pprofCmd `cmd:"" help:"Write a profile of the service's process to the standard output."`
	} `cmd:"" help:"Profiles of the service itself, for its developers."`
	Fault struct {
		Add   faultAddCmd   `cmd:"" help:"Disturb the packets of a device, or make a verb fail."`
		Show  faultShowCmd  `cmd:"" help:"List the rules with their counters." default:"withargs"`
		Clear faultClearCmd `cmd:"" help:"Remove one rule, or all rules."`
	} `cmd:"" help:"Loss, delay, duplication, reordering and corruption on the wire; receivers that are not ready; dead peers; verbs that fail."`

	Complete completeCmd `cmd:"" hidden:"" name:"complete-words" help:"Print the completions of a command line, for the shells' scripts."`
	Manual   manualCmd   `cmd:"" hidden:"" name:"man-pages" help:"Write the manual pages into a directory."`
}

// exitFailure is the exit code for a failure of verbena itself, as in env(1). The exit code of the program under
// `verbena run` is passed through.
const exitFailure = 125

// init reserves the first thread for main. A service thread that waits for a FUSE server cannot be killed, and
// keeps the process from ending. If the first thread waited like this, the process would not even become a zombie.
func init() { runtime.LockOSThread() }

func main() {
	supervisor.ExecTraced(os.Args)
	info, _ := debug.ReadBuildInfo()
	ctl.BuildName = "verbena " + buildName(info)
	var c cli
	if len(os.Args) == 1 {
		printUsage(newParser(&c))
		os.Exit(exitFailure)
	}
	k, err := parse(&c, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "verbena:", usageError(err))
		os.Exit(exitFailure)
	}
	if err := k.Run(&c); err != nil {
		var code exitCodeError
		if errors.As(err, &code) {
			os.Exit(int(code))
		}
		fmt.Fprintln(os.Stderr, "verbena:", errorWithRemedy(err))
		os.Exit(exitFailure)
	}
}

// errorWithRemedy returns the text of an error with the remedy. For EMFILE it adds the limit to raise, unless the text
// already names a limit.
func errorWithRemedy(err error) string {
	text := err.Error()
	if errors.Is(err, syscall.EMFILE) && !strings.Contains(text, "RLIMIT_NOFILE") && !strings.Contains(text, "ulimit") {
		text += "; raise the limit of open files (`ulimit -n`)"
	}
	return text
}

// printUsage prints the help to the standard error if the command line has no command.
func printUsage(parser *kong.Kong) {
	parser.Stdout = os.Stderr
	if k, err := kong.Trace(parser, nil); err == nil {
		_ = k.PrintUsage(false)
	}
}

func newParser(c *cli) *kong.Kong { return newParserOf(c) }

// newParserOf returns a parser of the commands and flags in the struct that grammar points to.
func newParserOf(grammar any) *kong.Kong {
	return kong.Must(grammar,
		kong.Name("verbena"),
		kong.Vars{"off_rules": listOffRules()},
		kong.Description("RDMA in user space: unmodified verbs programs on software RoCEv2 devices, without RDMA hardware, kernel module or root."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.NamedMapper("from1", kong.MapperFunc(decodeNumberFrom1)),
		flagParserOption(fault.ParseShare), flagParserOption(fault.ParseRate), flagParserOption(fault.ParseSize),
		kong.PostBuild(setUpFaultFlags), kong.PostBuild(orderShapeFlags))
}

// parse parses a command line. Most of the time of newParser goes to commands that the command line does not name.
// parse therefore first tries a parser with the named command only. The parser of all commands has the final say on
// invalid command lines, and prints all help.
func parse(c *cli, args []string) (*kong.Context, error) {
	words := args
	if i := slices.Index(args, "--"); i >= 0 {
		words = args[:i]
	}
	if slices.ContainsFunc(words, func(w string) bool { return w == "-h" || w == "--help" || w == "--version" }) {
		words = nil
	}
	for i, w := range words {
		isValue := i > 0 && (words[i-1] == "--socket" || words[i-1] == "--service-user")
		if isValue || strings.HasPrefix(w, "-") {
			continue
		}
		if k := parseCommand(c, w, args); k != nil {
			return k, nil
		}
		break
	}
	return newParser(c).Parse(args)
}

// parseCommand parses a command line with a parser that knows only one command. It returns nil if the command does not
// exist or the command line is invalid.
func parseCommand(c *cli, command string, args []string) *kong.Context {
	t := reflect.TypeFor[cli]()
	var fields []reflect.StructField
	found := false
	for f := range t.Fields() {
		_, isCommand := f.Tag.Lookup("cmd")
		_, isHidden := f.Tag.Lookup("hidden") // uses the parser's model of all commands
		switch named := cmp.Or(f.Tag.Get("name"), strings.ToLower(f.Name)) == command; {
		case isCommand && named && !isHidden:
			found = true
		case isCommand:
			continue
		}
		fields = append(fields, f)
	}
	if !found {
		return nil
	}
	grammar := reflect.New(reflect.StructOf(fields))
	k, err := newParserOf(grammar.Interface()).Parse(args)
	if err != nil {
		return nil
	}
	// The command has its flags in the grammar. Its function reads the global flags in c.
	for _, f := range fields {
		if _, isCommand := f.Tag.Lookup("cmd"); !isCommand {
			reflect.ValueOf(c).Elem().FieldByName(f.Name).Set(grammar.Elem().FieldByName(f.Name))
		}
	}
	return k
}

// usageError returns the error for an invalid command line. The error names the command and the way to print its help.
func usageError(err error) string {
	text := strings.NewReplacer(
		` but got "EOL" (<EOL>)`, "",
		"expected value value", "its value is missing",
		`expected "<name>"`, "the NAME of a device is missing",
	).Replace(err.Error())
	var p *kong.ParseError
	command := ""
	if errors.As(err, &p) {
		for _, x := range p.Context.Path {
			// The error omits a default command that the user did not type.
			if x.Command != nil && slices.Contains(p.Context.Args, x.Command.Name) {
				command = x.Command.Path()
			}
		}
	}
	if command == "" {
		return fmt.Sprintf("%s; see verbena --help", text)
	}
	return fmt.Sprintf("%s: %s; see verbena %[1]s --help", command, text)
}

// exitCodeError is an error with verbena's exit code, for errors that were reported already or need no report. The
// value is the exit code of verbena.
type exitCodeError int

func (e exitCodeError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func (c *cli) serviceLocation() (ctl.Location, error) {
	loc := ctl.Location{Socket: c.Socket}
	var err error
	if c.Socket == "" {
		if loc, err = ctl.DefaultLocation(); err != nil {
			return loc, err
		}
	} else if err := c.checkSocketDirectory(); err != nil {
		return loc, err
	}
	if c.Service != "" {
		uid, err := lookupUser("service-user", c.Service)
		if err != nil {
			return loc, err
		}
		loc.ServiceUser = &uid
	}
	return loc, nil
}

// checkSocketDirectory returns an error unless the control socket's directory exists.
func (c *cli) checkSocketDirectory() error {
	from := "--socket"
	if os.Getenv("VERBENA_SOCKET") == c.Socket {
		from = "VERBENA_SOCKET"
	}
	dir := filepath.Dir(c.Socket)
	fi, err := os.Stat(dir)
	if err == nil && !fi.IsDir() {
		err = &fs.PathError{Op: "stat", Path: dir, Err: syscall.ENOTDIR}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%s %s: directory of the control socket: %w; create it, or choose another path",
			from, c.Socket, err)
	}
	return nil
}

// sendRequest sends one request to the running service.
func (c *cli) sendRequest(r *ctl.Request) (*ctl.Response, error) {
	loc, err := c.serviceLocation()
	if err != nil {
		return nil, err
	}
	client, err := ctl.Dial(loc)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Do(r)
}

// sendRequestOrStart sends one request to the running service. If no service runs, sendRequestOrStart first starts one.
// The request configures that service, so the service does not end by itself.
func (c *cli) sendRequestOrStart(r *ctl.Request) (*ctl.Response, error) {
	client, err := c.startService()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	answer, err := client.Do(r)
	if err == nil && client.Started() {
		fmt.Fprintf(os.Stderr,
			"verbena: %s: no service was running; started one, which runs until `verbena stop`\n", r.Op)
	}
	return answer, err
}

func (c *cli) startService() (*service.Client, error) {
	loc, err := c.serviceLocation()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	return service.Start(loc, self)
}
