package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/fault"
)

// File is a parsed scenario file. The names of devices, programs and actions are local to the file.
type File struct {
	Name    string   `yaml:"name"`
	About   string   `yaml:"about"`   // description for readers
	Seed    uint64   `yaml:"seed"`    // seed of all random decisions; 0 means 1
	Timeout duration `yaml:"timeout"` // time limit of the run; 0 means DefaultTimeout
	Wire    bool     `yaml:"wire"`    // as in ctl.LinkSpec
	// Set holds default values of ${NAME} in run and env. The command line may replace these values. ${DIR} is the
	// folder of the file, and may also be used in Set.
	Set     map[string]string `yaml:"set"`
	Devices []deviceSpec      `yaml:"devices"`
	// Programs are started in this order.
	Programs []Program         `yaml:"programs"`
	Actions  []actionSpec      `yaml:"actions"`
	Expect   []expectedCounter `yaml:"expect"` // checked after all programs have ended
}

// DefaultTimeout is the time limit of a scenario without a timeout.
const DefaultTimeout = time.Minute

// deviceSpec is a device to create.
type deviceSpec struct {
	Name string       `yaml:"name"`
	Addr []string     `yaml:"addr"` // empty for all addresses of the interface
	If   string       `yaml:"if"`
	Link *fault.Shape `yaml:"link"` // initial shape of the link
	PCI  string       `yaml:"pci"`  // PCI function as which programs see the device; see pci.Parse
}

// Program is a program to run.
type Program struct {
	Name   string            `yaml:"name"`
	Run    []string          `yaml:"run"`
	Env    map[string]string `yaml:"env"`
	Start  *trigger          `yaml:"start"` // nil starts the program immediately
	Expect expectedOutcome   `yaml:"expect"`
}

// expectedOutcome is the expected outcome of a program.
type expectedOutcome struct {
	Exit   *int     `yaml:"exit"`   // exit code; nil means 0, unless Killed is set
	Killed string   `yaml:"killed"` // signal that kills the program, such as SIGKILL
	Within duration `yaml:"within"` // time limit after the program's start; 0 means the limit of the scenario
	Output []string `yaml:"output"` // regular expressions that lines must match, in this order
	Never  []string `yaml:"never"`  // regular expressions that no line may match
}

// trigger is the time of an action or of the start of a program. A moment has exactly one condition. Wait adds a
// delay.
type trigger struct {
	At      *duration `yaml:"at"` // time after the start of the programs
	Output  string    `yaml:"output"`
	Of      string    `yaml:"of"`    // program that prints the line of Output
	Exit    string    `yaml:"exit"`  // the moment is the end of this program
	Started string    `yaml:"start"` // the moment is the start of this program
	Listens int       `yaml:"listens"`
	Done    string    `yaml:"done"` // the moment is the end of this action
	Counter string    `yaml:"counter"`
	Reaches uint64    `yaml:"reaches"`
	// WR is the number of a send work request of the action's device, counted from the start. The moment is just before
	// its execution.
	WR     uint64   `yaml:"wr"`
	Packet uint64   `yaml:"packet"` // just before the device sends the packet with this number
	Dev    string   `yaml:"dev"`    // device of the counter
	Wait   duration `yaml:"wait"`
}

// isDetectedByDevice reports whether the device itself detects the moment.
func (m *trigger) isDetectedByDevice() bool { return m != nil && (m.WR > 0 || m.Packet > 0) }

// actionSpec is an action of a scenario. Exactly one of its pointers or strings is set.
type actionSpec struct {
	Name   string        `yaml:"name"` // unique name; empty means a description of the action
	When   *trigger      `yaml:"when"` // nil means before the programs start
	Link   *linkChange   `yaml:"link"`
	Reset  *deviceReset  `yaml:"reset"`
	Unplug string        `yaml:"unplug"` // name of a device
	Plug   string        `yaml:"plug"`
	Hang   string        `yaml:"hang"`
	Remove string        `yaml:"remove"`
	Add    *deviceSpec   `yaml:"add"`
	Fault  *faultSpec    `yaml:"fault"`
	Verb   *verbSpec     `yaml:"verb"`
	Clear  string        `yaml:"clear"` // action whose rule is deleted
	Event  *ctl.DevEvent `yaml:"event"`
	Signal *signalSpec   `yaml:"signal"`

	out bool // omitted by File.RemoveAction
}

// linkChange is a change of a link.
type linkChange struct {
	Dev   string       `yaml:"dev"`
	State string       `yaml:"state"` // up, down or flap
	For   duration     `yaml:"for"`   // duration of a flap
	MTU   int          `yaml:"mtu"`
	Shape *fault.Shape `yaml:"shape"`
}

// deviceReset is a reset of a device.
type deviceReset struct {
	Dev         string    `yaml:"dev"`
	Unreachable *duration `yaml:"unreachable"` // time without the device; 0 means until plug
	NoFlush     bool      `yaml:"no_flush"`
}

// faultSpec is a fault rule for the packets of a device.
type faultSpec struct {
	Dev        string `yaml:"dev"`
	fault.Rule `yaml:",inline"`
}

// verbSpec is a fault rule for a verb of a device, or of all devices.
type verbSpec struct {
	Dev            string `yaml:"dev"`
	fault.VerbRule `yaml:",inline"`
}

// signalSpec is a signal to a program.
type signalSpec struct {
	Program string `yaml:"program"`
	Signal  string `yaml:"signal"`
}

// expectedCounter is an expected value of a counter of a device, or of an action's rule.
type expectedCounter struct {
	Dev     string  `yaml:"dev"`
	Counter string  `yaml:"counter"`
	Action  string  `yaml:"action"` // replaces Dev; the counter is seen or hit of this action's rule
	Is      *uint64 `yaml:"is"`
	Min     *uint64 `yaml:"min"`
	Max     *uint64 `yaml:"max"`
}

// maxFileSize limits the size of a scenario file. The limit allows about a thousand actions. The parse time grows with
// the square of the size.
const maxFileSize = 64 << 10

// Load reads a scenario file. The values in set replace the values of the file's Set.
func Load(path string, set map[string]string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, maxFileSize+1)) // /dev/stdin has no size
	if err != nil {
		return nil, err
	}
	f, err := parseFileInDir(filepath.Dir(path), b, set)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// parseFileInDir parses a scenario. ${DIR} is dir. Syntax errors quote the line.
func parseFileInDir(dir string, b []byte, set map[string]string) (*File, error) {
	if len(b) > maxFileSize {
		return nil, fmt.Errorf("the file exceeds %d bytes", maxFileSize)
	}
	f := &File{}
	d := yaml.NewDecoder(bytes.NewReader(b), append(unitDecoders(), yaml.Strict())...)
	switch err := d.Decode(f); {
	case err == io.EOF:
		return nil, errors.New("the file contains no scenario")
	case err != nil:
		return nil, errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	var more any
	if err := d.Decode(&more); err != io.EOF {
		return nil, errors.New("the file contains a second document (---), but must contain one scenario")
	}
	for name, value := range f.Set {
		f.Set[name] = strings.ReplaceAll(value, "${DIR}", dir)
	}
	for name, value := range set {
		if _, ok := f.Set[name]; !ok {
			return nil, fmt.Errorf("unknown value %s; the values are: %s", name, joinNames(slices.Sorted(maps.Keys(f.Set))))
		}
		f.Set[name] = value
	}
	if err := f.expandVariables(dir); err != nil {
		return nil, err
	}
	if err := f.fillDefaultsAndCheck(); err != nil {
		return nil, err
	}
	return f, nil
}

func joinNames(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

var variablePattern = regexp.MustCompile(`\$\{([^}]*)\}`)

// expandVariables replaces ${NAME} in the arguments and environments of programs.
func (f *File) expandVariables(dir string) error {
	var missing error
	value := func(s string) string {
		return variablePattern.ReplaceAllStringFunc(s, func(v string) string {
			name := v[2 : len(v)-1]
			value, ok := f.Set[name]
			if !ok && name == "DIR" {
				return dir
			}
			if !ok {
				missing = fmt.Errorf("%s in %q: set has no %s; it has: %s", v, s, name, joinNames(slices.Sorted(maps.Keys(f.Set))))
			}
			return value
		})
	}
	for i := range f.Programs {
		p := &f.Programs[i]
		for j, a := range p.Run {
			p.Run[j] = value(a)
		}
		for k, v := range p.Env {
			p.Env[k] = value(v)
		}
	}
	return missing
}

// fillDefaultsAndCheck fills in defaults and rejects invalid values.
func (f *File) fillDefaultsAndCheck() error {
	if f.Name == "" {
		return errors.New(`missing key "name"`)
	}
	if f.Seed == 0 {
		f.Seed = 1
	}
	if f.Timeout == 0 {
		f.Timeout = duration(DefaultTimeout)
	}
	if len(f.Devices) == 0 {
		return errors.New("devices: the list is empty; add one with an address of this machine: {name: rxe0, addr: [127.0.0.1]}")
	}
	if len(f.Programs) == 0 {
		return errors.New("programs: the list is empty")
	}
	c := fileChecker{f: f, devices: map[string]bool{}, programs: map[string]bool{}, actions: map[string]*actionSpec{}}
	for i := range f.Devices {
		d := &f.Devices[i]
		if d.Name == "" {
			return fmt.Errorf("devices: the %s device has no name", ordinal(i))
		}
		if c.devices[d.Name] {
			return fmt.Errorf("devices: two devices have the name %s", d.Name)
		}
		c.devices[d.Name] = true
	}
	for i := range f.Actions {
		if a := f.Actions[i].Add; a != nil {
			c.devices[a.Name] = true
		}
	}
	for i := range f.Programs {
		p := &f.Programs[i]
		if p.Name == "" {
			return fmt.Errorf("programs: the %s program has no name", ordinal(i))
		}
		if c.programs[p.Name] {
			return fmt.Errorf("programs: two programs have the name %s", p.Name)
		}
		c.programs[p.Name] = true
		if len(p.Run) == 0 || p.Run[0] == "" {
			return fmt.Errorf("program %s: missing key \"run\", which is a list of the program and its arguments", p.Name)
		}
	}
	for i := range f.Actions {
		a := &f.Actions[i]
		what, err := a.describe()
		if err != nil {
			return fmt.Errorf("the %s action: %w", ordinal(i), err)
		}
		if a.Name == "" {
			a.Name = what
		}
		if c.actions[a.Name] != nil {
			return fmt.Errorf("actions: two actions have the name %q; give them different names", a.Name)
		}
		c.actions[a.Name] = a
	}
	for i := range f.Programs {
		p := &f.Programs[i]
		if err := errors.Join(c.checkTrigger(p.Start, "", p.Name), c.checkOutcome(&p.Expect)); err != nil {
			return fmt.Errorf("program %s: %w", p.Name, err)
		}
		if p.Start.isDetectedByDevice() {
			return fmt.Errorf("program %s: start: a program cannot start at a counted moment; start it after an action (done)",
				p.Name)
		}
	}
	for i := range f.Actions {
		a := &f.Actions[i]
		if err := errors.Join(c.checkTrigger(a.When, a.Name, ""), c.checkAction(a)); err != nil {
			return fmt.Errorf("action %q: %w", a.Name, err)
		}
	}
	for i := range f.Expect {
		if err := c.checkCounter(&f.Expect[i]); err != nil {
			return fmt.Errorf("the %s expectation: %w", ordinal(i), err)
		}
	}
	return c.checkCycles()
}

func ordinal(i int) string {
	switch i++; {
	case i%10 == 1 && i%100 != 11:
		return fmt.Sprintf("%dst", i)
	case i%10 == 2 && i%100 != 12:
		return fmt.Sprintf("%dnd", i)
	case i%10 == 3 && i%100 != 13:
		return fmt.Sprintf("%drd", i)
	}
	return fmt.Sprintf("%dth", i)
}

type fileChecker struct {
	f                 *File
	devices, programs map[string]bool
	actions           map[string]*actionSpec
}

func (c *fileChecker) checkDevice(name string) error {
	if !c.devices[name] {
		return fmt.Errorf("unknown device %q", name)
	}
	return nil
}

func (c *fileChecker) checkProgram(name string) error {
	if !c.programs[name] {
		return fmt.Errorf("unknown program %q", name)
	}
	return nil
}

// checkTrigger checks the moment of an action or of a program, given by its name. The name of the other kind is empty.
func (c *fileChecker) checkTrigger(m *trigger, action, program string) error {
	if m == nil {
		return nil
	}
	var is []string
	var err error
	add := func(on bool, name string, e error) {
		if on {
			is = append(is, name)
			err = errors.Join(err, e)
		}
	}
	add(m.At != nil, "at", nil)
	add(m.Output != "", "output", errors.Join(checkExpression(m.Output), c.checkProgram(m.Of)))
	add(m.Exit != "", "exit", c.checkProgram(m.Exit))
	add(m.Started != "", "start", c.checkProgram(m.Started))
	add(m.Listens != 0, "listens", nil)
	add(m.Done != "", "done", nil)
	add(m.Counter != "", "counter", c.checkDevice(m.Dev))
	add(m.WR > 0, "wr", nil)
	add(m.Packet > 0, "packet", nil)
	switch {
	case err != nil:
		return err
	case len(is) != 1:
		return fmt.Errorf("a moment is one of at, output, exit, start, listens, done, counter, wr and packet; this has %s",
			joinNames(is))
	case m.Listens < 0 || m.Listens > 65535:
		return fmt.Errorf("listens: %d is not a port", m.Listens)
	case m.Done != "" && c.actions[m.Done] == nil:
		return fmt.Errorf("done: unknown action %q", m.Done)
	case m.Done != "" && m.Done == action, m.Exit != "" && m.Exit == program, m.Started != "" && m.Started == program:
		return errors.New("the action waits for itself")
	case m.Counter != "" && m.Reaches == 0:
		return errors.New(`counter: missing key "reaches"`)
	case m.isDetectedByDevice() && m.Wait != 0:
		return errors.New("wait: a delay cannot follow a counted moment")
	}
	return nil
}

// RemoveAction removes an action from the run, together with the actions that follow it (done) or clear its rule. The
// removed actions are not expected to be done. All other expectations remain, so a scenario that depends on the
// action fails.
func (f *File) RemoveAction(action string) error {
	at := slices.IndexFunc(f.Actions, func(a actionSpec) bool { return a.Name == action })
	if at < 0 {
		var names []string
		for i := range f.Actions {
			names = append(names, f.Actions[i].Name)
		}
		return fmt.Errorf("unknown action %q; the actions are: %s", action, joinNames(names))
	}
	f.Actions[at].out = true
	for i := range f.Actions {
		if a := &f.Actions[i]; !a.out && (a.Clear == action || a.When != nil && a.When.Done == action) {
			if err := f.RemoveAction(a.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkCycles rejects actions and programs that wait for each other.
func (c *fileChecker) checkCycles() error {
	type node struct{ action, program string }
	next := func(m *trigger) (n node, ok bool) {
		switch {
		case m == nil:
		case m.Done != "":
			return node{action: m.Done}, true
		case m.Exit != "":
			return node{program: m.Exit}, true
		case m.Started != "":
			return node{program: m.Started}, true
		case m.Output != "":
			return node{program: m.Of}, true
		}
		return node{}, false
	}
	waits := map[node]node{}
	for i := range c.f.Actions {
		if n, ok := next(c.f.Actions[i].When); ok {
			waits[node{action: c.f.Actions[i].Name}] = n
		}
	}
	for i := range c.f.Programs {
		if n, ok := next(c.f.Programs[i].Start); ok {
			waits[node{program: c.f.Programs[i].Name}] = n
		}
	}
	for from := range waits {
		at, steps := from, 0
		for n, ok := waits[at]; ok; n, ok = waits[at] {
			if at = n; at == from || steps > len(waits) {
				return fmt.Errorf("%s%s waits for itself through other actions or programs", from.action, from.program)
			}
			steps++
		}
	}
	return nil
}

func checkExpression(s string) error {
	_, err := regexp.Compile(s)
	return err
}

func (c *fileChecker) checkOutcome(o *expectedOutcome) error {
	if o.Exit != nil && o.Killed != "" {
		return errors.New("expect: a killed program has no exit code")
	}
	if o.Killed != "" && signalNumber(o.Killed) == 0 {
		return fmt.Errorf("expect: killed: %q is not a signal", o.Killed)
	}
	for _, s := range slices.Concat(o.Output, o.Never) {
		if err := checkExpression(s); err != nil {
			return fmt.Errorf("expect: %w", err)
		}
	}
	return nil
}

// describe returns a description of the action.
func (a *actionSpec) describe() (string, error) {
	var is []string
	add := func(on bool, format string, args ...any) {
		if on {
			is = append(is, strings.TrimSpace(fmt.Sprintf(format, args...)))
		}
	}
	if l := a.Link; l != nil {
		state := l.State
		if state == "" {
			state = "set"
		}
		add(true, "link %s %s", l.Dev, state)
	}
	if r := a.Reset; r != nil {
		add(true, "reset %s", r.Dev)
	}
	add(a.Unplug != "", "unplug %s", a.Unplug)
	add(a.Plug != "", "plug %s", a.Plug)
	add(a.Hang != "", "hang %s", a.Hang)
	add(a.Remove != "", "remove %s", a.Remove)
	if a.Add != nil {
		add(true, "add %s", a.Add.Name)
	}
	if a.Fault != nil {
		add(true, "fault %s", a.Fault.Dev)
	}
	if v := a.Verb; v != nil {
		add(true, "%s %s", v.Verb, v.Errno)
	}
	add(a.Clear != "", "clear %s", a.Clear)
	if e := a.Event; e != nil {
		add(true, "event %s %s", e.Name, e.Event)
	}
	if s := a.Signal; s != nil {
		add(true, "%s %s", s.Signal, s.Program)
	}
	if len(is) != 1 {
		return "", fmt.Errorf("an action is one of link, reset, unplug, plug, hang, remove, add, fault, verb, clear, event and signal; this has %s", joinNames(is))
	}
	return is[0], nil
}

// deviceName returns the device of an action, or "" if it has none.
func (a *actionSpec) deviceName() string {
	switch {
	case a.Link != nil:
		return a.Link.Dev
	case a.Reset != nil:
		return a.Reset.Dev
	case a.Fault != nil:
		return a.Fault.Dev
	case a.Verb != nil:
		return a.Verb.Dev
	case a.Event != nil:
		return a.Event.Name
	case a.Add != nil:
		return a.Add.Name
	}
	return a.Unplug + a.Plug + a.Hang + a.Remove
}

// cancelsTriggerOf reports whether the action makes a device cancel the pending counted moment of o.
func (a *actionSpec) cancelsTriggerOf(o *actionSpec) bool {
	if a == o || !o.When.isDetectedByDevice() || a.deviceName() != o.deviceName() {
		return false
	}
	switch {
	case a.Link != nil:
		return o.Link != nil && a.Link.State != ""
	case a.Reset != nil || a.Unplug != "":
		return o.Reset != nil
	}
	return a.Remove != ""
}

func (c *fileChecker) checkAction(a *actionSpec) error {
	if dev := a.deviceName(); dev != "" || a.Clear == "" && a.Signal == nil && a.Verb == nil {
		if err := c.checkDevice(dev); err != nil {
			return err
		}
	}
	if m := a.When; m.isDetectedByDevice() {
		switch {
		case a.Link != nil && (a.Link.State == "down" || a.Link.State == "flap") && a.Link.MTU == 0 && a.Link.Shape == nil:
		case a.Reset != nil && m.Packet == 0:
		case a.Fault != nil:
			return errors.New("a rule itself counts packets: use skip and limit instead of a moment")
		case a.Verb != nil:
			return errors.New("a rule for a verb itself counts calls: use nth and times instead of a moment")
		default:
			return errors.New("a counted moment is possible only for link (down, flap) and, with wr, for reset; " +
				"make the action follow one of them (done), or a counter")
		}
	}
	if a.When.isDetectedByDevice() {
		for i := range c.f.Actions {
			if o := &c.f.Actions[i]; o != a && o.When.isDetectedByDevice() && o.deviceName() == a.deviceName() &&
				(o.Link != nil) == (a.Link != nil) {
				return fmt.Errorf("%q also has a counted moment of %s: a device waits for one link and one reset; make one follow the other (done)",
					o.Name, a.deviceName())
			}
		}
	}
	switch {
	case a.Link != nil:
		l := a.Link
		if !slices.Contains([]string{"", "up", "down", "flap"}, l.State) {
			return fmt.Errorf("state %q is none of up, down and flap", l.State)
		}
		if l.State == "" && l.MTU == 0 && l.Shape == nil {
			return errors.New("the action changes nothing: give a state, an mtu or a shape")
		}
		if l.For != 0 && l.State != "flap" {
			return errors.New("\"for\" is the duration of a flap; to end down, add an action up that follows down (done, wait)")
		}
	case a.Clear != "":
		if o := c.actions[a.Clear]; o == nil || o.Fault == nil && o.Verb == nil {
			return fmt.Errorf("no fault or verb has the name %q", a.Clear)
		}
	case a.Verb != nil:
		return a.Verb.Validate()
	case a.Signal != nil:
		if signalNumber(a.Signal.Signal) == 0 {
			return fmt.Errorf("%q is not a signal, such as SIGKILL", a.Signal.Signal)
		}
		return c.checkProgram(a.Signal.Program)
	}
	return nil
}

func (c *fileChecker) checkCounter(x *expectedCounter) error {
	switch {
	case x.Is == nil && x.Min == nil && x.Max == nil:
		return errors.New("give is, min or max")
	case x.Action != "":
		if a := c.actions[x.Action]; a == nil || a.Fault == nil && a.Verb == nil {
			return fmt.Errorf("no fault or verb has the name %q", x.Action)
		}
		if x.Counter != "seen" && x.Counter != "hit" {
			return fmt.Errorf("the counter of a rule is seen or hit, not %q", x.Counter)
		}
		return nil
	case x.Counter == "":
		return errors.New(`missing key "counter"`)
	}
	return c.checkDevice(x.Dev)
}

func signalNumber(name string) syscall.Signal { return unix.SignalNum(name) }
