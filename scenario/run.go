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

// scenarioService is the service that a scenario runs on. A lab has the devices and the seed of the scenario and no
// others. Do may be called concurrently, and may sleep.
type scenarioService interface {
	Do(r *ctl.Request) (*ctl.Response, error)
}

// programStarter starts programs on the lab. The starter calls line with each line of a program's output until Wait has
// returned.
type programStarter interface {
	Start(p *Program, line func(text string)) (Process, error)
}

// Process is a running program.
type Process interface {
	// Wait returns when the program has ended and all of its output was read. It may sleep.
	Wait() Exit
	// Signal sends a signal to the program. Signal may sleep until the program has been started.
	Signal(syscall.Signal) error
	// Kill kills the program and its children.
	Kill()
}

// Exit is the exit status of a program.
type Exit struct {
	Code   int            `json:"code"`
	Signal syscall.Signal `json:"signal,omitempty"` // signal that has killed the program; 0 if it has exited
}

// String describes the exit status.
func (e Exit) String() string {
	if e.Signal != 0 {
		return "killed by " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// Runner runs scenarios.
type Runner struct {
	Lab     scenarioService
	Starter programStarter
	// Listens reports whether a TCP port of this network namespace has a listener.
	Listens func(port int) bool
	// Progress, if not nil, is called with each event. Calls are not concurrent.
	Progress func(ProgressEvent)
	// Observe, if not nil, is called with the result so far, about four times a second while programs run. Observe must
	// not keep the result, and delays the run while it executes. Calls are not concurrent.
	Observe func(*Result)
}

const (
	// pollInterval is the polling interval for moments without notification.
	pollInterval = 5 * time.Millisecond
	// sampleInterval is the interval of the device samples for the timeline.
	sampleInterval = 20 * time.Millisecond
	// observeInterval is the interval of the calls of Observe.
	observeInterval = 250 * time.Millisecond
	// maxSamples limits the samples. At the limit every second sample is removed, and the interval doubles.
	maxSamples = 2000
	// maxLines limits the number of lines kept of each program. Later lines are kept only if they match an
	// expectation.
	maxLines = 2000
	// maxLine limits the length of a line, in bytes.
	maxLine = 1000
	// killGrace limits the wait for killed programs.
	killGrace = 5 * time.Second
	// leftGrace is the time in which the service may still list device files of ended programs. The service detects
	// their end asynchronously.
	leftGrace = 5 * time.Second
)

// runEvent is an event for the loop of a run.
type runEvent struct {
	program int // index of the program, for line and exit
	line    *string
	exit    *Exit
	action  int // index of the action, for done
	done    bool
	err     error
	id      int
}

// runState is the state of a running scenario. Only one goroutine uses it.
type runState struct {
	*Runner
	f     *File
	res   *Result
	began time.Time // start time of the programs
	news  chan runEvent

	programs []programRun
	actions  []actionRun
	running  int // number of programs
	busy     int // number of actions in progress
	thin     int // a sample is taken every thin ticks
	ticks    int
	counters map[string]map[string]uint64 // values from the last read
	stale    bool                         // counters must be read again in this round
}

type programRun struct {
	state  progressState
	due    time.Time
	proc   Process
	killed bool
	// These fields hold the expressions of outcome.Output, in order, and the expressions of outcome.Never without a
	// match so far.
	output, never []*regexp.Regexp
}

// matchesExpectation reports whether the line is the first match of an expectation of the program.
func (p *programRun) matchesExpectation(text string) (is bool) {
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

func compileExpressions(list []string) (all []*regexp.Regexp) {
	for _, s := range list {
		all = append(all, regexp.MustCompile(s))
	}
	return all
}

type actionRun struct {
	state progressState
	due   time.Time
	armed bool // the device is waiting for the moment
	id    int  // ID of the rule
	live  bool // the rule exists
}

// progressState is the state of a program or an action.
//
//	waiting --moment--> dueLater --end of wait--> underWay --> over
type progressState uint8

const (
	waiting progressState = iota
	dueLater
	underWay
	over
)

// Run runs a scenario. An error means that the run could not be completed. The Result then holds the events until
// the error. Run may sleep for the time limit of the file and a few seconds more.
func (r *Runner) Run(ctx context.Context, f *File) (*Result, error) {
	x := &runState{Runner: r, f: f, news: make(chan runEvent), began: time.Now(), thin: int(sampleInterval / pollInterval),
		programs: make([]programRun, len(f.Programs)), actions: make([]actionRun, len(f.Actions)),
		counters: map[string]map[string]uint64{}}
	x.res = newResult(f, x.began)
	for i := range f.Actions {
		if f.Actions[i].out {
			x.actions[i].state = over
		}
	}
	err := x.runAll(ctx)
	x.res.checkExpectations(f, time.Since(x.began), err)
	return x.res, err
}

func (x *runState) runAll(ctx context.Context) error {
	for i := range x.f.Devices {
		if d := &x.f.Devices[i]; d.Link != nil {
			if _, err := x.Lab.Do(&ctl.Request{Op: ctl.OpLinkSet,
				Set: &ctl.LinkSet{Name: d.Name, Shape: x.shapeWithSeed(d.Link)}}); err != nil {
				return fmt.Errorf("device %s: %w", d.Name, err)
			}
		}
	}
	limit := time.NewTimer(time.Duration(x.f.Timeout))
	defer limit.Stop()
	for i := range x.f.Actions {
		a := &x.f.Actions[i]
		if a.out || a.When != nil && !a.When.isDetectedByDevice() {
			continue
		}
		x.beginAction(i)
		select {
		case h := <-x.news:
			x.handleEvent(h)
			if h.err != nil {
				return fmt.Errorf("action %q: %w", a.Name, h.err)
			}
		case <-limit.C: // an action such as a flap, which is done only at its end
			x.res.TimedOut = true
			x.res.Actions[i].Error = fmt.Sprintf("the action takes longer than %v", time.Duration(x.f.Timeout))
			go func() { <-x.news }() // the message may be sent much later
			return nil
		case <-ctx.Done():
			go func() { <-x.news }()
			return context.Cause(ctx)
		}
	}
	x.refreshCounters()
	x.began = time.Now()
	x.res.Began = x.began
	defer x.endRun()
	return x.runEventLoop(ctx)
}

// runEventLoop runs until all programs have ended, and all actions are done whose moments can still occur.
func (x *runState) runEventLoop(ctx context.Context) error {
	limit := time.NewTimer(time.Duration(x.f.Timeout))
	defer limit.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		x.startDueItems(time.Now())
		if x.isFinished() {
			return nil
		}
		select {
		case h := <-x.news:
			x.handleEvent(h)
		case <-tick.C:
			x.pollDevices()
		case <-limit.C:
			x.res.TimedOut = true
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isFinished reports whether no more events can happen. The remaining actions then wait for events of ended programs.
func (x *runState) isFinished() bool {
	if x.running > 0 || x.busy > 0 {
		return false
	}
	for i := range x.programs {
		if p := &x.programs[i]; p.state == dueLater || p.state == waiting &&
			x.mayOccurWithoutPrograms(x.f.Programs[i].Start) {
			return false
		}
	}
	for i := range x.actions {
		a := &x.actions[i]
		if a.state == dueLater || a.state == waiting && x.mayOccurWithoutPrograms(x.f.Actions[i].When) {
			return false
		}
	}
	return true
}

// mayOccurWithoutPrograms reports whether a moment can occur while no program runs.
func (x *runState) mayOccurWithoutPrograms(m *trigger) bool { return m != nil && m.At != nil }

// endRun kills the remaining programs and records the final state.
func (x *runState) endRun() {
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
			x.handleEvent(h)
		case <-deadline:
			break wait
		}
	}
	if x.running > 0 || x.busy > 0 {
		go func() { // keeps reading, so that late senders do not block
			for range x.news {
			}
		}()
	}
	x.recordFinalState()
}

// handleEvent handles an event.
func (x *runState) handleEvent(h runEvent) {
	at := time.Since(x.began)
	switch {
	case h.line != nil:
		p := &x.res.Programs[h.program]
		if x.programs[h.program].matchesExpectation(*h.line) || len(p.Lines) < maxLines {
			p.Lines = append(p.Lines, outputLine{at, *h.line})
		} else {
			p.More++
		}
		if strings.TrimSpace(*h.line) != "" {
			p.last = *h.line
		}
		x.reportProgress(ProgressEvent{At: at, Kind: MarkLine, Subject: p.Name, Text: *h.line})
		x.markDueTriggers(func(m *trigger) bool {
			return m.Output != "" && m.Of == p.Name && regexp.MustCompile(m.Output).MatchString(*h.line)
		})
	case h.exit != nil:
		p := &x.res.Programs[h.program]
		x.programs[h.program].state = over
		x.running--
		p.End, p.Exit = at, h.exit
		p.Killed = x.programs[h.program].killed
		x.reportProgress(ProgressEvent{At: at, Kind: MarkExit, Subject: p.Name, Text: h.exit.String()})
		x.markDueTriggers(func(m *trigger) bool { return m.Exit == p.Name })
	case h.done:
		x.busy--
		a, res := &x.actions[h.action], &x.res.Actions[h.action]
		a.id, a.live = h.id, h.id != 0
		if h.err != nil {
			res.Error = h.err.Error()
		}
		if a.armed && h.err == nil {
			return // not done until the device reports the moment
		}
		x.markActionDone(h.action, at)
	}
}

// markActionDone records that an action is done.
func (x *runState) markActionDone(i int, at time.Duration) {
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
	x.reportProgress(ProgressEvent{At: res.At, Kind: MarkAction, Subject: res.Name, Text: text})
	x.markDueTriggers(func(m *trigger) bool { return m.Done == res.Name })
}

func (x *runState) reportProgress(m ProgressEvent) {
	if x.Progress != nil {
		x.Progress(m)
	}
}

// markDueTriggers marks the programs and actions as due if is returns true for their moment.
func (x *runState) markDueTriggers(is func(*trigger) bool) {
	now := time.Now()
	x.forEachTrigger(func(m *trigger, state *progressState, due *time.Time) {
		if *state == waiting && m != nil && !m.isDetectedByDevice() && is(m) {
			*state, *due = dueLater, now.Add(time.Duration(m.Wait))
		}
	})
}

func (x *runState) forEachTrigger(f func(m *trigger, state *progressState, due *time.Time)) {
	for i := range x.programs {
		f(x.f.Programs[i].Start, &x.programs[i].state, &x.programs[i].due)
	}
	for i := range x.actions {
		f(x.f.Actions[i].When, &x.actions[i].state, &x.actions[i].due)
	}
}

// startDueItems starts the due programs and actions.
func (x *runState) startDueItems(now time.Time) {
	x.stale = true
	for again := true; again; { // the start of one program may be the moment of another
		again = false
		x.markDueTriggers(func(m *trigger) bool {
			switch {
			case m.At != nil:
				return now.Sub(x.began) >= time.Duration(*m.At)
			case m.Listens != 0:
				return x.Listens(m.Listens)
			case m.Counter != "":
				return x.readCounter(m.Dev, m.Counter) >= m.Reaches
			}
			return false
		})
		for i := range x.programs {
			p := &x.programs[i]
			if p.state == waiting && x.f.Programs[i].Start == nil || p.state == dueLater && !now.Before(p.due) {
				x.startProgram(i)
				again = true
			}
		}
		for i := range x.actions {
			if a := &x.actions[i]; a.state == dueLater && !now.Before(a.due) {
				x.beginAction(i)
			}
		}
	}
}

func (x *runState) startProgram(i int) {
	p, res := &x.programs[i], &x.res.Programs[i]
	res.Start, res.Started = time.Since(x.began), true
	x.reportProgress(ProgressEvent{At: res.Start, Kind: MarkStart, Subject: res.Name,
		Text: strings.Join(x.f.Programs[i].Run, " ")})
	proc, err := x.Starter.Start(&x.f.Programs[i], func(text string) {
		text = strings.ToValidUTF8(text[:min(len(text), maxLine)], "\ufffd")
		x.news <- runEvent{program: i, line: &text}
	})
	if err != nil {
		p.state = over
		res.End, res.Error = res.Start, err.Error()
		x.reportProgress(ProgressEvent{At: res.Start, Kind: MarkExit, Subject: res.Name, Text: err.Error()})
		return
	}
	p.state, p.proc = underWay, proc
	p.output, p.never = compileExpressions(x.f.Programs[i].Expect.Output), compileExpressions(x.f.Programs[i].Expect.Never)
	x.running++
	go func() {
		e := proc.Wait()
		x.news <- runEvent{program: i, exit: &e}
	}()
	x.markDueTriggers(func(m *trigger) bool { return m.Started == res.Name })
}

// cancelTriggersOfAction ends the pending counted moments that action i makes the devices cancel.
func (x *runState) cancelTriggersOfAction(i int) {
	looked := false
	for j := range x.actions {
		if !x.isAwaitingCountedMoment(j) || !x.f.Actions[i].cancelsTriggerOf(&x.f.Actions[j]) {
			continue
		}
		if !looked {
			looked = true
			x.findOccurredTriggers() // the moment may have occurred just now
		}
		if x.isAwaitingCountedMoment(j) {
			x.res.Actions[j].Error = fmt.Sprintf("its moment was not reached before %q, which cancelled it",
				x.res.Actions[i].Name)
			x.markActionDone(j, time.Since(x.began))
		}
	}
}

// isAwaitingCountedMoment reports whether the device is still waiting for the counted moment of action i.
func (x *runState) isAwaitingCountedMoment(i int) bool {
	return x.actions[i].state == underWay && x.actions[i].armed
}

// beginAction performs an action, or arms the device to perform it at its counted moment.
func (x *runState) beginAction(i int) {
	x.cancelTriggersOfAction(i)
	a, f := &x.actions[i], &x.f.Actions[i]
	res := &x.res.Actions[i]
	a.state, a.armed = underWay, f.When.isDetectedByDevice()
	res.At, res.Began = time.Since(x.began), true
	x.busy++
	if s := f.Signal; s != nil {
		proc, err := x.runningProcess(s.Program)
		go func() {
			if err == nil {
				err = proc.Signal(signalNumber(s.Signal))
			}
			x.news <- runEvent{action: i, done: true, err: err}
		}()
		return
	}
	requests, err := x.actionRequests(f)
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
		x.news <- runEvent{action: i, done: true, err: err, id: id}
	}()
}

// runningProcess returns the named program, which must be running.
func (x *runState) runningProcess(name string) (Process, error) {
	for i := range x.programs {
		if x.f.Programs[i].Name == name && x.programs[i].state == underWay {
			return x.programs[i].proc, nil
		}
	}
	return nil, fmt.Errorf("%s is not running", name)
}

// actionRequests returns the requests to the service for an action.
func (x *runState) actionRequests(a *actionSpec) ([]*ctl.Request, error) {
	var m trigger
	if a.When != nil {
		m = *a.When
	}
	switch {
	case a.Link != nil:
		l := a.Link
		return []*ctl.Request{{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: l.Dev, State: ctl.LinkState(l.State),
			Down: time.Duration(l.For), MTU: l.MTU,
			Shape: x.shapeWithSeed(l.Shape), AtWR: m.WR, AtPacket: m.Packet}}}, nil
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
		list := []*ctl.Request{{Op: ctl.OpLinkAdd, Link: &ctl.LinkSpec{Name: d.Name, Addrs: d.Addr, Netdev: d.If,
			Wire: x.f.Wire, PCI: d.PCI}}}
		if d.Link != nil {
			list = append(list, &ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: d.Name, Shape: x.shapeWithSeed(d.Link)}})
		}
		return list, nil
	case a.Fault != nil:
		return []*ctl.Request{{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: a.Fault.Dev, Rule: a.Fault.Rule}}}, nil
	case a.Verb != nil:
		v := a.Verb.WithDefaults()
		return []*ctl.Request{{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: a.Verb.Dev, Verb: &v}}}, nil
	case a.Clear != "":
		id := 0
		for i := range x.f.Actions {
			if x.f.Actions[i].Name == a.Clear && x.actions[i].live {
				id, x.actions[i].live = x.actions[i].id, false
				x.recordRuleStats(i)
			}
		}
		if id == 0 {
			return nil, fmt.Errorf("%s has no rule", a.Clear)
		}
		return []*ctl.Request{{Op: ctl.OpFaultClear, ID: id}}, nil
	case a.Event != nil:
		return []*ctl.Request{{Op: ctl.OpDevEvent, Event: a.Event}}, nil
	}
	return nil, errors.New("the action does nothing")
}

// shapeWithSeed returns the shape with the seed of the scenario, if the shape uses random numbers.
func (x *runState) shapeWithSeed(s *fault.Shape) *fault.Shape {
	if s == nil {
		return nil
	}
	c := *s
	if c.Loss > 0 || c.Jitter > 0 {
		c.Seed = x.f.Seed
	}
	return &c
}

// pollDevices polls the devices for moments and samples.
func (x *runState) pollDevices() {
	x.ticks++
	if x.ticks%x.thin == 0 {
		x.recordSample()
	}
	x.findOccurredTriggers()
	if x.Observe != nil && x.ticks%int(observeInterval/pollInterval) == 1 {
		x.res.Took = time.Since(x.began)
		x.Observe(x.res)
	}
}

// findOccurredTriggers finds the counted moments that have occurred since the last call.
func (x *runState) findOccurredTriggers() {
	links, devs := "", ""
	for i := range x.actions {
		if !x.isAwaitingCountedMoment(i) {
			continue
		}
		dev, what := x.f.Actions[i].deviceName(), ""
		if x.f.Actions[i].Link != nil {
			if links == "" {
				links = x.armedLinkNames()
			}
			what = links
		} else {
			if devs == "" {
				devs = x.armedDevNames()
			}
			what = devs
		}
		if !strings.Contains(what, "\n"+dev+"\n") {
			x.markActionDone(i, time.Since(x.began))
		}
	}
}

// armedLinkNames returns the names of the devices with a pending counted change of the link, one a line.
func (x *runState) armedLinkNames() string {
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

func (x *runState) armedDevNames() string {
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

// readCounter returns the current value of a counter of a device.
func (x *runState) readCounter(dev, name string) uint64 {
	if x.stale {
		x.refreshCounters()
	}
	return x.counters[dev][name]
}

func (x *runState) refreshCounters() {
	x.stale = false
	a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpStatShow})
	if err != nil {
		return
	}
	for _, s := range a.Stats {
		x.recordEvents(s.Dev, x.counters[s.Dev], s.Counters)
		x.counters[s.Dev] = s.Counters // a removed device keeps its last values
	}
}

// recordEvents records the asynchronous events of a device between two reads of its counters.
func (x *runState) recordEvents(dev string, before, now map[string]uint64) {
	if before == nil {
		return // ignores events from before the start of the programs
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		event, ok := strings.CutPrefix(name, "event_")
		if !ok || now[name] == before[name] || len(x.res.Events) == maxEvents {
			continue
		}
		e := deviceEvent{At: time.Since(x.began), Dev: dev, Event: event, Times: now[name]}
		if now[name] > before[name] { // a lower value means a new device with the same name
			e.Times -= before[name]
		}
		x.res.Events = append(x.res.Events, e)
		x.reportProgress(ProgressEvent{At: e.At, Kind: MarkEvent, Subject: dev, Text: e.String()})
	}
}

// recordSample records the state of the devices for the timeline.
func (x *runState) recordSample() {
	x.refreshCounters()
	s := stateSample{At: time.Since(x.began), Devices: map[string]deviceSample{}}
	states := map[string]deviceSample{}
	if a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpLinkShow}); err == nil {
		for _, l := range a.Links {
			states[l.Name] = deviceSample{State: l.State, Link: string(l.Link)}
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

// recordRuleStats records the statistics of an action's rule.
func (x *runState) recordRuleStats(i int) {
	a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpFaultShow})
	if err != nil {
		return
	}
	for _, s := range a.Faults {
		if s.ID == x.actions[i].id {
			x.res.Actions[i].Rule = &ruleResult{Seen: s.Seen, Hit: s.Hit, HitAt: s.HitAt}
		}
	}
}

// maxCauses is the number of failures that a result explains.
const maxCauses = 20

// recordFinalState records the final state, and the reasons for failures.
func (x *runState) recordFinalState() {
	for i := range x.actions {
		if x.actions[i].live {
			x.recordRuleStats(i)
		}
	}
	x.recordSample()
	for dev, c := range x.counters {
		x.res.Counters[dev] = maps.Clone(c)
	}
	x.findOccurredTriggers()
	if a, err := x.Lab.Do(&ctl.Request{Op: ctl.OpExplain, Explain: &ctl.Explain{Last: maxCauses}}); err == nil {
		x.res.Causes = a.Causes
	}
	if x.running > 0 {
		return
	}
	for limit := time.Now().Add(leftGrace); ; time.Sleep(pollInterval) {
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
