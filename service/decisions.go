package service

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib/weak"
	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/link"
)

// decisionMemory is the memory of a connection for the decisions of weak devices. The client has it as well, and may
// change it at any time. A nil decisionMemory has no memory.
type decisionMemory struct {
	user *quota.User

	mu      sync.Mutex
	mem     *shm.File
	text    []byte          // the mapping; nil after close
	end     int             // offset of the next line
	begun   bool            // the first lines are written
	faults  *faultDecisions // nil: none
	links   *linkTable      // with faults
	missing uint32
	line    []byte
}

// replayBytes is the charge for the decisions of a replay in the memory of this process.
const replayBytes = 8 << 20

// answerDecisionsRequest makes the memory of a connection, and sends it to the client.
func (s *Service) answerDecisionsRequest(c ctl.Conn, who peer, m *decisionMemory) (*decisionMemory, error) {
	var theirs *os.File
	err := error(syscall.EBUSY)
	if m == nil {
		m, theirs, err = s.newDecisionMemory(who)
	}
	a := &ctl.Response{}
	if err != nil {
		a = errorResponse(fmt.Errorf("record decisions: %w", err))
	}
	err = s.replyWithFD(c, a, theirs)
	if theirs != nil {
		theirs.Close()
	}
	return m, err
}

func (s *Service) newDecisionMemory(who peer) (m *decisionMemory, theirs *os.File, err error) {
	user := s.quota.Account(who.Account)
	if err := user.Charge(quota.BufferBytes, replayBytes); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			user.Release(quota.BufferBytes, replayBytes)
		}
	}()
	mem, err := shm.Create("verbena-decisions", quota.BufferBytes, user, s.kept.ObjectsOf(user))
	if err != nil {
		return nil, nil, err
	}
	mem.KeepPagesOnClose() // the client reads them
	region, err := mem.Alloc(ctl.DecisionMemory)
	if err == nil {
		theirs, err = mem.OpenForProgram(unix.O_RDWR)
	}
	if err != nil {
		mem.Close()
		return nil, nil, err
	}
	return &decisionMemory{user: user, mem: mem, text: region.Mem, end: ctl.DecisionText}, theirs, nil
}

// close frees the memory. Later decisions are not recorded.
func (m *decisionMemory) close() {
	if m == nil {
		return
	}
	m.mu.Lock()
	open, faults := m.text != nil, m.faults
	m.text, m.faults = nil, nil
	m.mu.Unlock()
	if faults != nil {
		m.links.removeDecider(faults)
	}
	if open {
		m.mem.Close()
		m.user.Release(quota.BufferBytes, replayBytes)
	}
}

// begin writes the first lines of the log.
func (m *decisionMemory) begin(seed uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.begun {
		m.begun = true
		m.end += copy(m.text[m.end:], (&weak.Log{Seed: seed}).AppendText(nil))
	}
}

// record adds a decision to the memory. It may be called with locks of devices held, and does not sleep.
func (m *decisionMemory) record(d *weak.Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.text == nil {
		return
	}
	m.line = d.AppendText(m.line[:0])
	if m.end+len(m.line) >= ctl.DecisionReplay {
		m.missing++
		binary.NativeEndian.PutUint32(m.text, m.missing)
		return
	}
	m.end += copy(m.text[m.end:], m.line)
}

// replay returns the decisions that the client has written.
func (m *decisionMemory) replay() (*weak.DecisionSet, error) {
	m.mu.Lock()
	text := bytes.Clone(m.text[ctl.DecisionReplay:]) // the client may change the memory meanwhile
	m.mu.Unlock()
	l, err := weak.ReadLog(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("replay decisions: %w", err)
	}
	return weak.NewDecisionSet(l.Decisions), nil
}

// weakConfig returns the configuration of the weak devices of a program. m may be nil.
func weakConfig(w *ctl.Weak, m *decisionMemory) (*weak.Config, error) {
	choices, err := weak.ParseForPrograms(w.Choices)
	if err != nil {
		return nil, err
	}
	c := &weak.Config{Seed: w.Seed, Choices: choices}
	if (w.Record || w.Replay) && m == nil {
		return nil, fmt.Errorf("the connection has no memory for decisions: %w", syscall.EINVAL)
	}
	if w.Record {
		m.begin(w.Seed)
		c.Record = m.record
	}
	if w.Replay {
		if c.Decisions, err = m.replay(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// faultDecisions records the random decisions of fault rules and shapes of links, and replays those of a log.
// (link.Decider, with the name of a link)
type faultDecisions struct {
	m      *decisionMemory
	replay *weak.DecisionSet // nil: none
}

// beginFaultDecisions answers OpFaultDecisions.
func (s *Service) beginFaultDecisions(who peer, w *ctl.Weak, m *decisionMemory) *ctl.Response {
	fail := func(err error) *ctl.Response { return errorResponse(fmt.Errorf("record fault decisions: %w", err)) }
	if err := who.authorize(ctl.OpFaultAdd); err != nil {
		return fail(err)
	}
	if m == nil {
		return fail(fmt.Errorf("the connection has no memory for decisions: %w", syscall.EINVAL))
	}
	f := &faultDecisions{m: m}
	if w.Replay {
		var err error
		if f.replay, err = m.replay(); err != nil {
			return fail(err)
		}
	}
	m.begin(w.Seed)
	m.mu.Lock()
	begun := m.faults != nil
	if !begun {
		m.faults, m.links = f, &s.links
	}
	m.mu.Unlock()
	if begun {
		return fail(syscall.EBUSY)
	}
	s.links.addDecider(f) // without m.mu, which record locks
	return &ctl.Response{}
}

// addDecider adds a decider to all links, and to further ones.
func (t *linkTable) addDecider(f *faultDecisions) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deciders = append(t.deciders, f)
	for _, l := range t.list {
		f.addTo(l)
	}
}

func (f *faultDecisions) addTo(l *rdmaLink) {
	l.faults.AddDecider(linkDecider{f, l.spec.Name}, f.replay != nil)
}

func (t *linkTable) removeDecider(f *faultDecisions) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deciders = slices.DeleteFunc(t.deciders, func(o *faultDecisions) bool { return o == f })
	for _, l := range t.list {
		l.faults.RemoveDecider(linkDecider{f, l.spec.Name})
	}
}

// linkDecider implements link.Decider.
type linkDecider struct {
	*faultDecisions
	link string
}

// decisionEvents maps the kinds of decisions to the events of a log.
var decisionEvents = [link.NumDecisionKinds]weak.Event{
	link.DecideDrop: weak.EventDrop, link.DecideDuplicate: weak.EventDuplicate, link.DecideCorrupt: weak.EventCorrupt,
	link.DecideJitter: weak.EventJitter, link.DecideReorder: weak.EventReorder, link.DecideRNR: weak.EventRNR,
}

// Decide implements link.Decider. The device of a decision is the rule, such as rxe0:rule1, or the link, rxe0:link.
func (f linkDecider) Decide(d *link.Decision, drawn uint64) uint64 {
	if f.replay == nil && drawn == 0 {
		return 0
	}
	device := f.link + ":link"
	if d.Rule > 0 {
		device = fmt.Sprintf("%s:rule%d", f.link, d.Rule)
	}
	x := weak.Decision{Device: weak.DeviceName(device), Value: int(drawn), Point: weak.Point{Choice: weak.PacketFault,
		Object: weak.ObjectQP, Number: d.Flow, Event: decisionEvents[d.Kind], Seq: d.Packet}}
	if d.Response {
		x.Object = weak.ObjectResponder
	}
	if f.replay != nil {
		x.Value = f.replay.Value(x.Device, x.Point)
	}
	if x.Value != 0 {
		x.About = fmt.Sprintf("QP %d", d.QP)
		f.m.record(&x)
	}
	return uint64(x.Value)
}
