package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/fault"
)

// Lab is the service that a scenario runs on, with its devices and nothing else, and its seed. Do may be called by several goroutines at once, and may sleep.
type Lab interface {
	Do(r *ctl.Request) (*ctl.Response, error)
}

// Starter starts programs on the Lab. line is called with each line of its output, until Wait has returned.
type Starter interface {
	Start(p *Program, line func(text string)) (Process, error)
}

// Process is a program that was started.
type Process interface {
	// Wait returns when the program has ended and all of its output was read. It may sleep.
	Wait() Exit
	// Signal sends the program a signal. It may sleep, until the program has been started.
	Signal(syscall.Signal) error
	// Kill ends the program, and what it has started.
	Kill()
}

// Exit is how a program has ended.
type Exit struct {
	Code   int            `json:"code"`
	Signal syscall.Signal `json:"signal,omitempty"` // that has killed it; 0: it has exited
}

// String says it in words.
func (e Exit) String() string {
	if e.Signal != 0 {
		return "killed by " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// Runner runs scenarios.
type Runner struct {
	Lab     Lab
	Starter Starter
	// Listens reports whether something listens on a TCP port of this network namespace.
	Listens func(port int) bool
	// Progress, if not nil, is called with what happens. It may not be called concurrently.
	Progress func(Mark)
}

const (
	// lookEvery is how often moments are looked for that nothing announces.
	lookEvery = 5 * time.Millisecond
	// sampleEvery is how often devices are looked at for the timeline.
	sampleEvery = 20 * time.Millisecond
	// maxSamples bounds them; then every other one is dropped, and they become rarer.
	maxSamples = 2000
	// maxLines is how many lines are kept of a program, with those later ones that expectations are about.
	maxLines = 2000
	// maxLine bounds one, in bytes.
	maxLine = 1000
	// killGrace is how long the end of programs is waited for that were killed.
	killGrace = 5 * time.Second
	// leftGrace is how long after their end programs may still have device files open: the service learns of it on its own.
	leftGrace = 5 * time.Second
)

// happening is what the loop of a run is told.
type happening struct {
	program int // line, exit
	line    *string
	exit    *Exit
	action  int // done
	done    bool
	err     error
	id      int
}

// run is a scenario being run. One goroutine has it.
type run struct {
	*Runner
	f     *File
	res   *Result
	began time.Time // when programs were started
	news  chan happening

	programs []programRun
	actions  []actionRun
	running  int // programs
	busy     int // actions that are being done
	thin     int // every so many ticks a sample is taken
	ticks    int
	counters map[string]map[string]uint64 // as of the last look
	stale    bool                         // they are not of this round
}

type programRun struct {
	state  progress
	due    time.Time
	proc   Process
	killed bool
	// The expressions of Outcome.Output, in order, and of Outcome.Never that no line has matched yet.
	output, never []*regexp.Regexp
}

// expects reports whether a line is the first to match an expectation of the program.
func (p *programRun) expects(text string) (is bool) {
	if len(p.output) > 0 && p.output[0].MatchString(text) {
		p.output = p.output[1:]
		is = true
	}
	p.never = slices.DeleteFunc(p.never, func(re *regexp.Regexp) bool {
		matches := re.MatchString(text)
		is = is || matches
		return matches
	})
	return is
}

func expressions(list []string) (all []*regexp.Regexp) {
	for _, s := range list {
		all = append(all, regexp.MustCompile(s))
	}
	return all
}

type actionRun struct {
	state progress
	due   time.Time
	armed bool // the device waits for the moment
	id    int  // of the rule
	live  bool // the rule is there
}

// progress of a program or an action.
//
//	waiting --moment--> dueLater --wait is over--> under way --> over
type progress uint8

const (
	waiting progress = iota
	dueLater
	underWay
	over
)

// Run runs a scenario. An error means that it could not be run; the Result says what was seen until then. It may sleep, up to the time limit of
// the file and a few seconds more.
func (r *Runner) Run(ctx context.Context, f *File) (*Result, error) {
	x := &run{Runner: r, f: f, news: make(chan happening), began: time.Now(), thin: int(sampleEvery / lookEvery),
		programs: make([]programRun, len(f.Programs)), actions: make([]actionRun, len(f.Actions)), counters: map[string]map[string]uint64{}}
	x.res = newResult(f, x.began)
	for i := range f.Actions {
		if f.Actions[i].out {
			x.actions[i].state = over
		}
	}
	err := x.all(ctx)
	x.res.finish(f, time.Since(x.began), err)
	return x.res, err
}

func (x *run) all(ctx context.Context) error {
	for i := range x.f.Devices {
		if d := &x.f.Devices[i]; d.Link != nil {
			if _, err := x.Lab.Do(&ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: d.Name, Shape: x.shape(d.Link)}}); err != nil {
				return fmt.Errorf("device %s: %w", d.Name, err)
			}
		}
	}
	limit := time.NewTimer(time.Duration(x.f.Timeout))
	defer limit.Stop()
	for i := range x.f.Actions {
		a := &x.f.Actions[i]
		if a.out || a.When != nil && !a.When.counted() {
			continue
		}
		x.begin(i)
		select {
		case h := <-x.news:
			x.took(h)
			if h.err != nil {
				return fmt.Errorf("action %q: %w", a.Name, h.err)
			}
		case <-limit.C: // such as a flap, which is done when it has ended
			x.res.TimedOut = true
			x.res.Actions[i].Error = fmt.Sprintf("it takes longer than %v", time.Duration(x.f.Timeout))
			go func() { <-x.news }() // which may come much later
			return nil
		case <-ctx.Done():
			go func() { <-x.news }()
			return context.Cause(ctx)
		}
	}
	x.readCounters()
	x.began = time.Now()
	x.res.Began = x.began
	defer x.end()
	return x.loop(ctx)
}

// loop runs until all programs have ended, and all actions are done that can be.
func (x *run) loop(ctx context.Context) error {
	limit := time.NewTimer(time.Duration(x.f.Timeout))
	defer limit.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		x.advance(time.Now())
		if x.finished() {
			return nil
		}
		select {
		case h := <-x.news:
			x.took(h)
		case <-tick.C:
			x.look()
		case <-limit.C:
			x.res.TimedOut = true
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// finished reports whether nothing more can happen: what is left waits for something of programs that have ended.
func (x *run) finished() bool {
	if x.running > 0 || x.busy > 0 {
		return false
	}
	for i := range x.programs {
		if p := &x.programs[i]; p.state == dueLater || p.state == waiting && x.mayCome(x.f.Programs[i].Start) {
			return false
		}
	}
	for i := range x.actions {
		a := &x.actions[i]
		if a.state == dueLater || a.state == waiting && x.mayCome(x.f.Actions[i].When) {
			return false
		}
	}
	return true
}

// mayCome reports whether a moment can come while no program runs.
func (x *run) mayCome(m *Moment) bool { return m != nil && m.At != nil }

// end ends the programs that are left, and takes a last look.
func (x *run) end() {
	for i := range x.programs {
		if p := &x.programs[i]; p.state == underWay {
			p.killed = true
			p.proc.Kill()
		}
	}
	deadline := time.After(killGrace)
wait:
	for x.running > 0 || x.busy > 0 {
		select {
		case h := <-x.news:
			x.took(h)
		case <-deadline:
			break wait
		}
	}
	if x.running > 0 || x.busy > 0 {
		go func() { // what does not end must not wait for a reader
			for range x.news {
			}
		}()
	}
	x.last()
}

// took notes what has happened.
func (x *run) took(h happening) {
	at := time.Since(x.began)
	switch {
	case h.line != nil:
		p := &x.res.Programs[h.program]
		if x.programs[h.program].expects(*h.line) || len(p.Lines) < maxLines {
			p.Lines = append(p.Lines, Line{at, *h.line})
		} else {
			p.More++
		}
		x.mark(Mark{At: at, Kind: MarkLine, Subject: p.Name, Text: *h.line})
		x.seen(func(m *Moment) bool {
			return m.Output != "" && m.Of == p.Name && regexp.MustCompile(m.Output).MatchString(*h.line)
		})
	case h.exit != nil:
		p := &x.res.Programs[h.program]
		x.programs[h.program].state = over
		x.running--
		p.End, p.Exit = at, h.exit
		p.Killed = x.programs[h.program].killed
		x.mark(Mark{At: at, Kind: MarkExit, Subject: p.Name, Text: h.exit.String()})
		x.seen(func(m *Moment) bool { return m.Exit == p.Name })
	case h.done:
		x.busy--
		a, res := &x.actions[h.action], &x.res.Actions[h.action]
		a.id, a.live = h.id, h.id != 0
		if h.err != nil {
			res.Error = h.err.Error()
		}
		if a.armed && h.err == nil {
			return // until the device says that it has come
		}
		x.over(h.action, at)
	}
}

// over notes that an action is done.
func (x *run) over(i int, at time.Duration) {
	a, res := &x.actions[i], &x.res.Actions[i]
	a.state = over
	res.Done = true
	res.End = at
	if a.armed {
		res.At = at
	}
	text := res.What
	if res.Error != "" {
		text += ": " + res.Error
	}
	x.mark(Mark{At: res.At, Kind: MarkAction, Subject: res.Name, Text: text})
	x.seen(func(m *Moment) bool { return m.Done == res.Name })
}

func (x *run) mark(m Mark) {
	if x.Progress != nil {
		x.Progress(m)
	}
}

// seen makes due what waits for a moment that is.
func (x *run) seen(is func(*Moment) bool) {
	now := time.Now()
	x.each(func(m *Moment, state *progress, due *time.Time) {
		if *state == waiting && m != nil && !m.counted() && is(m) {
			*state, *due = dueLater, now.Add(time.Duration(m.Wait))
		}
	})
}

func (x *run) each(f func(m *Moment, state *progress, due *time.Time)) {
	for i := range x.programs {
		f(x.f.Programs[i].Start, &x.programs[i].state, &x.programs[i].due)
	}
	for i := range x.actions {
		f(x.f.Actions[i].When, &x.actions[i].state, &x.actions[i].due)
	}
}

// advance begins what is due.
func (x *run) advance(now time.Time) {
	x.stale = true
	for again := true; again; { // a program that starts may be what another waits for
		again = false
		x.seen(func(m *Moment) bool {
			switch {
			case m.At != nil:
				return now.Sub(x.began) >= time.Duration(*m.At)
			case m.Listens != 0:
				return x.Listens(m.Listens)
			case m.Counter != "":
				return x.counter(m.Dev, m.Counter) >= m.Reaches
			}
			return false
		})
		for i := range x.programs {
			p := &x.programs[i]
			if p.state == waiting && x.f.Programs[i].Start == nil || p.state == dueLater && !now.Before(p.due) {
				x.start(i)
				again = true
			}
		}
		for i := range x.actions {
			if a := &x.actions[i]; a.state == dueLater && !now.Before(a.due) {
				x.begin(i)
			}
		}
	}
}

func (x *run) start(i int) {
	p, res := &x.programs[i], &x.res.Programs[i]
	res.Start, res.Started = time.Since(x.began), true
	x.mark(Mark{At: res.Start, Kind: MarkStart, Subject: res.Name, Text: strings.Join(x.f.Programs[i].Run, " ")})
	proc, err := x.Starter.Start(&x.f.Programs[i], func(text string) {
		text = strings.ToValidUTF8(text[:min(len(text), maxLine)], "\ufffd")
		x.news <- happening{program: i, line: &text}
	})
	if err != nil {
		p.state = over
		res.End, res.Error = res.Start, err.Error()
		x.mark(Mark{At: res.Start, Kind: MarkExit, Subject: res.Name, Text: err.Error()})
		return
	}
	p.state, p.proc = underWay, proc
	p.output, p.never = expressions(x.f.Programs[i].Expect.Output), expressions(x.f.Programs[i].Expect.Never)
	x.running++
	go func() {
		e := proc.Wait()
		x.news <- happening{program: i, exit: &e}
	}()
	x.seen(func(m *Moment) bool { return m.Started == res.Name })
}

// forget gives up the moments that devices wait for and that an action has them forget.
func (x *run) forget(i int) {
	looked := false
	for j := range x.actions {
		if !x.waits(j) || !x.f.Actions[i].forgets(&x.f.Actions[j]) {
			continue
		}
		if !looked {
			looked = true
			x.armed() // it may have come in this moment
		}
		if x.waits(j) {
			x.res.Actions[j].Error = fmt.Sprintf("its moment had not come when %q was done, which has the device forget it", x.res.Actions[i].Name)
			x.over(j, time.Since(x.began))
		}
	}
}

// waits reports whether a device waits for the moment of an action.
func (x *run) waits(i int) bool { return x.actions[i].state == underWay && x.actions[i].armed }

// begin does an action, or has the device do it at its moment.
func (x *run) begin(i int) {
	x.forget(i)
	a, f := &x.actions[i], &x.f.Actions[i]
	res := &x.res.Actions[i]
	a.state, a.armed = underWay, f.When.counted()
	res.At, res.Began = time.Since(x.began), true
	x.busy++
	if s := f.Signal; s != nil {
		proc, err := x.process(s.Program)
		go func() {
			if err == nil {
				err = proc.Signal(signalNumber(s.Signal))
			}
			x.news <- happening{action: i, done: true, err: err}
		}()
		return
	}
	requests, err := x.requests(f)
	go func() {
		id := 0
		for _, r := range requests {
			if err != nil {
				break
			}
			var answer *ctl.Response
			if answer, err = x.Lab.Do(r); err == nil {
				id = answer.ID
			}
		}
		x.news <- happening{action: i, done: true, err: err, id: id}
	}()
}

// process returns the program of a name, which must run.
func (x *run) process(name string) (Process, error) {
	for i := range x.programs {
		if x.f.Programs[i].Name == name && x.programs[i].state == underWay {
			return x.programs[i].proc, nil
		}
	}
	return nil, fmt.Errorf("%s does not run", name)
}

// requests returns what to ask of the service for an action.
func (x *run) requests(a *Action) ([]*ctl.Request, error) {
	var m Moment
	if a.When != nil {
		m = *a.When
	}
	switch {
	case a.Link != nil:
		l := a.Link
		return []*ctl.Request{{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: l.Dev, State: ctl.LinkState(l.State), Down: time.Duration(l.For), MTU: l.MTU,
			Shape: x.shape(l.Shape), AtWR: m.WR, AtPacket: m.Packet}}}, nil
	case a.Reset != nil:
		r := &ctl.DevReset{Name: a.Reset.Dev, NoFlush: a.Reset.NoFlush, AtWR: m.WR}
		if u := a.Reset.Unreachable; u != nil {
			r.Unreachable, r.Outage = true, time.Duration(*u)
		}
		return []*ctl.Request{{Op: ctl.OpDevReset, Reset: r}}, nil
	case a.Unplug != "":
		return []*ctl.Request{{Op: ctl.OpDevUnplug, Name: a.Unplug}}, nil
	case a.Plug != "":
		return []*ctl.Request{{Op: ctl.OpDevPlug, Name: a.Plug}}, nil
	case a.Hang != "":
		return []*ctl.Request{{Op: ctl.OpDevHang, Name: a.Hang}}, nil
	case a.Remove != "":
		return []*ctl.Request{{Op: ctl.OpLinkDel, Name: a.Remove}}, nil
	case a.Add != nil:
		d := a.Add
		list := []*ctl.Request{{Op: ctl.OpLinkAdd, Link: &ctl.LinkSpec{Name: d.Name, Addrs: d.Addr, Netdev: d.If, Wire: x.f.Wire}}}
		if d.Link != nil {
			list = append(list, &ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: d.Name, Shape: x.shape(d.Link)}})
		}
		return list, nil
	case a.Fault != nil:
		return []*ctl.Request{{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: a.Fault.Dev, Rule: a.Fault.Rule}}}, nil
	case a.Verb != nil:
		v := a.Verb
		times := v.Times
		if v.Nth != 0 && times == 0 {
			times = 1
		}
		return []*ctl.Request{{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: v.Dev, Verb: &ctl.VerbFault{
			Verb: v.Verb, Errno: v.Errno, Delay: time.Duration(v.Delay), Process: v.Process, Nth: v.Nth, Times: times}}}}, nil
	case a.Clear != "":
		id := 0
		for i := range x.f.Actions {
			if x.f.Actions[i].Name == a.Clear && x.actions[i].live {
				id, x.actions[i].live = x.actions[i].id, false
				x.rule(i)
			}
		}
		if id == 0 {
			return nil, fmt.Errorf("%s has made no rule", a.Clear)
		}
		return []*ctl.Request{{Op: ctl.OpFaultClear, ID: id}}, nil
	case a.Event != nil:
		return []*ctl.Request{{Op: ctl.OpDevEvent, Event: a.Event}}, nil
	}
	return nil, errors.New("it does nothing")
}

// shape returns a shape with the seed of the scenario, if it needs one.
func (x *run) shape(s *fault.Shape) *fault.Shape {
	if s == nil {
		return nil
	}
	c := *s
	if c.Loss > 0 || c.Jitter > 0 {
		c.Seed = x.f.Seed
	}
	return &c
}

// look sees what nothing announces.
func (x *run) look() {
	x.ticks++
	if x.ticks%x.thin == 0 {
		x.sample()
	}
	x.armed()
}

// armed finds out which of the moments that devices wait for have come.
func (x *run) armed() {
	links, devs := "", ""
	for i := range x.actions {
		if !x.waits(i) {
			continue
		}
		dev, what := x.f.Actions[i].dev(), ""
		if x.f.Actions[i].Link != nil {
			if links == "" {
				links = x.waitingLinks()
			}
			what = links
		} else {
			if devs == "" {
				devs = x.waitingDevs()
			}
			what = devs
		}
		if !strings.Contains(what, "\n"+dev+"\n") {
			x.over(i, time.Since(x.began))
		}
	}
}

// waitingLinks returns the devices that a change of the link waits for a moment of, each on a line.
func (x *run) waitingLinks() string {
	list := "\n"
	if a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpLinkShow}); err == nil {
		for _, l := range a.Links {
			if l.Armed != "" {
				list += l.Name + "\n"
			}
		}
	}
	return list
}

func (x *run) waitingDevs() string {
	list := "\n"
	if a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpDevShow}); err == nil {
		for _, d := range a.Devs {
			if d.Armed != "" {
				list += d.Name + "\n"
			}
		}
	}
	return list
}

// counter returns a counter of a device, as it is now.
func (x *run) counter(dev, name string) uint64 {
	if x.stale {
		x.readCounters()
	}
	return x.counters[dev][name]
}

func (x *run) readCounters() {
	x.stale = false
	a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpStatShow})
	if err != nil {
		return
	}
	for _, s := range a.Stats {
		x.events(s.Dev, x.counters[s.Dev], s.Counters)
		x.counters[s.Dev] = s.Counters // of a device that has gone the last ones stay
	}
}

// events notes the asynchronous events of a device between two looks at its counters.
func (x *run) events(dev string, before, now map[string]uint64) {
	if before == nil {
		return // what there was before the programs are started
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		event, ok := strings.CutPrefix(name, "event_")
		if !ok || now[name] == before[name] || len(x.res.Events) == maxEvents {
			continue
		}
		e := DeviceEvent{At: time.Since(x.began), Dev: dev, Event: event, Times: now[name]}
		if now[name] > before[name] { // else it is another device of the name
			e.Times -= before[name]
		}
		x.res.Events = append(x.res.Events, e)
		x.mark(Mark{At: e.At, Kind: MarkEvent, Subject: dev, Text: e.String()})
	}
}

// sample takes a look at the devices for the timeline.
func (x *run) sample() {
	x.readCounters()
	s := Sample{At: time.Since(x.began), Devices: map[string]DeviceSample{}}
	states := map[string]DeviceSample{}
	if a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpLinkShow}); err == nil {
		for _, l := range a.Links {
			states[l.Name] = DeviceSample{State: l.State, Link: string(l.Link)}
		}
	}
	for name, d := range states {
		c := x.counters[name]
		d.Packets = c["sent_pkts"]
		for _, k := range []string{"completer_retry_err", "rcvd_seq_err", "rcvd_rnr_err"} {
			d.Retries += c[k]
		}
		for k, n := range c {
			if strings.HasPrefix(k, "drop_") || strings.HasPrefix(k, "shaper_drop") {
				d.Drops += n
			}
		}
		s.Devices[name] = d
	}
	x.res.Samples = append(x.res.Samples, s)
	if len(x.res.Samples) >= maxSamples {
		kept := x.res.Samples[:0]
		for i := 0; i < len(x.res.Samples); i += 2 {
			kept = append(kept, x.res.Samples[i])
		}
		x.res.Samples = kept
		x.thin *= 2
	}
}

// rule notes what the rule of an action has done.
func (x *run) rule(i int) {
	a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpFaultShow})
	if err != nil {
		return
	}
	for _, s := range a.Faults {
		if s.ID == x.actions[i].id {
			x.res.Actions[i].Rule = &Rule{Seen: s.Seen, Hit: s.Hit, HitAt: s.HitAt}
		}
	}
}

// last notes what there is at the end.
func (x *run) last() {
	for i := range x.actions {
		if x.actions[i].live {
			x.rule(i)
		}
	}
	x.sample()
	for dev, c := range x.counters {
		x.res.Counters[dev] = maps.Clone(c)
	}
	x.armed()
	if x.running > 0 {
		return
	}
	for limit := time.Now().Add(leftGrace); ; time.Sleep(lookEvery) {
		x.res.Left = nil
		a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpResShow})
		if err != nil {
			return
		}
		for _, c := range a.Contexts {
			x.res.Left = append(x.res.Left, fmt.Sprintf("%s of process %d (%s)", c.Device, c.PID, c.Process))
		}
		if len(x.res.Left) == 0 || time.Now().After(limit) {
			return
		}
	}
}
