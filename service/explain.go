package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"verbena/driver"
	"verbena/explain"
	"verbena/ib"
	"verbena/ib/slot"
	"verbena/internal/ctl"
	"verbena/internal/qpinfo"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/rdmacm/ucma"
	"verbena/reqtrace"
	"verbena/uverbs"
)

// failureLog explains the failures of programs. It also writes each cause to the service's log, and to the trace of its
// program.
type failureLog struct {
	causes   *explain.Recorder
	requests *reqtrace.Recorder // traces with the events of the connection manager
	cm       *ucma.Server       // nil until the servers of the programs' calls exist
	log      *slog.Logger
	ended    context.Context // done when the service begins to stop
	found    chan foundCause
	traces   sessionTraces
}

// newFailureLog starts to write causes until ended is done.
func newFailureLog(ended context.Context, log *slog.Logger, requests *reqtrace.Recorder) *failureLog {
	l := &failureLog{requests: requests, log: log, ended: ended, found: make(chan foundCause, maxFound)}
	l.causes = explain.New(explain.Config{
		Program: programOf,
		Life:    lifeOf,
		Found: func(c *qpinfo.Cause) { // must not sleep
			select {
			case l.found <- foundCause{cause: *c}:
			default: // the log and the traces omit the cause
			}
		},
	})
	go l.writeCauses()
	return l
}

// maxFound is the number of causes that wait for the log and the traces.
const maxFound = 1024

// foundCause is a cause for the log and for the trace of its program, or a mark in their sequence.
type foundCause struct {
	cause qpinfo.Cause
	mark  chan<- struct{} // closed when all causes before it were written; nil for a cause
}

// writeCauses logs each cause, and adds it to the trace of its program, until the service ends.
func (l *failureLog) writeCauses() {
	for {
		select {
		case f := <-l.found:
			if f.mark != nil {
				close(f.mark)
				continue
			}
			c := &f.cause
			l.traces.send(c)
			l.log.Debug("failure", uidKey, c.UID, "pid", c.PID, "dev", c.Device, "cause", c.Row, "why", c)
		case <-l.ended.Done():
			return
		}
	}
}

// awaitCauses waits until all causes found so far were written. It may sleep.
func (l *failureLog) awaitCauses() {
	done := make(chan struct{})
	select {
	case l.found <- foundCause{mark: done}:
	case <-l.ended.Done():
		return
	}
	select {
	case <-done:
	case <-l.ended.Done():
	}
}

// sessionTraces are the traces of programs, by the names of their sessions.
type sessionTraces struct {
	mu sync.Mutex
	m  map[string]*callTrace
}

// add adds a trace until the call of remove.
func (t *sessionTraces) add(session string, c *callTrace) (remove func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[string]*callTrace{}
	}
	t.m[session] = c
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.m, session)
	}
}

// send adds a cause to the trace of its program, if there is a trace.
func (t *sessionTraces) send(c *qpinfo.Cause) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if trace := t.m[c.Session]; trace != nil && c.Session != "" {
		trace.sendLine("--- " + c.Advice())
	}
}

// maxExplained is the number of causes that the end of a program shows.
const maxExplained = 20

// explainSession sends the causes of a program's failures to its launcher.
func (l *failureLog) explainSession(who peer, session string, trace *callTrace) {
	for _, c := range l.explain(who, ctl.Explain{Session: session, Last: maxExplained}) {
		trace.sendLine(ctl.CausePrefix + c.Advice())
	}
}

// sessionMember is implemented by a uverbs.Process that belongs to a session of the supervisor.
type sessionMember interface{ SessionName() string }

// programOf returns the program of a context. It may not sleep.
func programOf(c ib.UserContext) (explain.Program, bool) {
	p, ending, ok := uverbs.ProcessOf(c)
	if !ok {
		return explain.Program{}, false
	}
	x := programOfProcess(p)
	x.Ending = ending
	return x, true
}

// lifeOf returns the state of the process of a context. It may not sleep.
func lifeOf(c ib.UserContext) explain.Life {
	p, _, _ := uverbs.ProcessOf(c)
	if x, ok := p.(interface{ IsAlive() bool }); ok && !x.IsAlive() {
		return explain.Ended
	}
	if x, ok := p.(interface{ MemoryEnded() (ended, executed bool) }); ok {
		switch ended, executed := x.MemoryEnded(); {
		case ended && executed:
			return explain.Executed
		case ended:
			return explain.Ended
		}
	}
	return explain.Running
}

func programOfProcess(p uverbs.Process) explain.Program {
	x := explain.Program{User: p.User().ID(), PID: p.PID(), Name: p.Name()}
	if m, ok := p.(sessionMember); ok {
		x.Session = m.SessionName()
	}
	return x
}

// callRefused reports a refused command to the recorder. It may not sleep.
func (l *failureLog) callRefused(c uverbs.Refusal) {
	var injected *ruleError
	x := explain.RefusedCall{
		Time: time.Now(), Program: explain.Program{User: c.User, PID: c.PID, Name: c.Program, Session: c.Session},
		Device: c.Device, Err: c.Err, Injected: errors.As(c.Err, &injected),
	}
	var qp *uverbs.QPError
	if errors.As(c.Err, &qp) {
		x.Device, x.QP = qp.Device, qp.Num
	}
	l.causes.CallRefused(x)
}

// connectionChanged reports an event of the connection manager to the traces, and a failed connection to the recorder
// of causes. It may not sleep.
func (l *failureLog) connectionChanged(f ucma.Report) {
	p := explain.Program{User: f.User, PID: f.PID, Session: f.Session}
	if x := f.Rejection; x != nil {
		row := rejectionRows[x.Cause]
		if f.Ending && x.Cause == rdmacm.RejectedByDestroy {
			row = rejectedEnded
		}
		l.causes.RequestRejected(explain.RejectedRequest{
			Time: time.Now(), Program: p, From: x.Peer, Row: row, Backlog: x.Backlog,
		})
		return
	}
	if l.requests.IsTraced(f.User) {
		l.requests.ConnectionChanged(reqtrace.ConnectionEvent{
			Time: time.Now(), Program: reqtrace.Program{User: f.User, PID: f.PID, Name: commandName(f.PID)}, ID: f.ID,
			Type: f.Event.Type, Status: f.Event.Status, Peer: f.View.Dst, QPN: f.View.QPN, PeerQPN: f.Event.Param.QPN,
		})
	}
	if f.Event.Type.IsFailure() {
		l.connectionFailed(p, f)
	}
}

// connectionFailed reports a failed connection to the recorder of causes.
func (l *failureLog) connectionFailed(p explain.Program, f ucma.Report) {
	p.Name = commandName(f.PID)
	x := explain.FailedConnection{
		Time: time.Now(), Program: p, Local: f.View.Src, Remote: f.View.Dst, Since: f.View.Asked,
	}
	if d := f.View.Device; d != nil {
		x.Device = d.Name()
	}
	switch f.Event.Type {
	case rdmacm.Rejected:
		x.Event, x.Reason, x.Text = explain.ConnectionRejected, int(f.Event.Status), msg.RejectReason(f.Event.Status).String()
	case rdmacm.AddrError, rdmacm.RouteError:
		x.Event = explain.AddressUnresolved
		if err := f.Event.Err(); err != nil {
			x.Text = err.Error()
		}
	default:
		x.Event = explain.ConnectionUnreachable
		if f.Event.Type == rdmacm.Unreachable && f.Event.Status > 0 { // the answer of a datagram service
			x.Event, x.Reason, x.Datagram = explain.ConnectionRejected, int(f.Event.Status), true
			x.Text = fmt.Sprintf("status %d", f.Event.Status)
		}
	}
	l.causes.ConnectionFailed(x)
}

// rejectedEnded is the row of a rejection because the file of the connection manager was closed.
const rejectedEnded = "rejected-ended"

// rejectionRows are the rows of the causes of rejections.
var rejectionRows = [rdmacm.NumRejectionCauses]string{
	rdmacm.RejectedByOwner: "rejected-program", rdmacm.RejectedByError: "rejected-accept",
	rdmacm.RejectedByDestroy: "rejected-destroyed", rdmacm.RejectedByRemoval: "rejected-removed",
	rdmacm.RejectedByBacklog: "rejected-backlog", rdmacm.RejectedByAddress: "rejected-address",
}

// deviceObserver passes the reports of a device to both recorders, and logs each queue pair that enters ERR.
type deviceObserver struct {
	causes   *explain.Recorder
	requests *reqtrace.Recorder
	log      *slog.Logger
}

// StateChanged implements driver.Observer.
func (o deviceObserver) StateChanged(s driver.StateChange) {
	if s.To == ib.QPErr && s.From != ib.QPErr {
		// The caller holds locks. The log queues records of this level for a goroutine.
		//verbena:allow nosleep a goroutine of the log's writes what has this level
		o.log.Debug("queue pair enters ERR", "dev", s.QP.Device, "qp", s.QP.Num, "why", s.Cause)
	}
	o.causes.StateChanged(s)
	o.requests.StateChanged(s)
}

// CompletionFailed implements driver.Observer.
func (o deviceObserver) CompletionFailed(f driver.FailedCompletion) { o.causes.CompletionFailed(f) }

// RequestRefused implements driver.Observer.
func (o deviceObserver) RequestRefused(f driver.RefusedRequest) {
	o.causes.RequestRefused(f)
	o.requests.RequestRefused(f)
}

// PacketsDropped implements driver.Observer.
func (o deviceObserver) PacketsDropped(f driver.DroppedPackets) {
	o.causes.PacketsDropped(f)
	o.requests.PacketsDropped(f)
}

// PacketsUnsent implements driver.Observer.
func (o deviceObserver) PacketsUnsent(f driver.UnsentPackets) {
	o.causes.PacketsUnsent(f)
	o.requests.PacketsUnsent(f)
}

// CompletionLost implements driver.Observer.
func (o deviceObserver) CompletionLost(f driver.LostCompletion) { o.causes.CompletionLost(f) }

// TraceQueue implements driver.Observer.
func (o deviceObserver) TraceQueue(q driver.QueueRef) driver.RequestLog {
	return o.requests.TraceQueue(q)
}

// KeyEnded implements driver.Observer.
func (o deviceObserver) KeyEnded(k driver.EndedKey) { o.causes.KeyEnded(k) }

// tracedProgramOf is programOf for the trace of work requests.
func tracedProgramOf(c ib.UserContext) (reqtrace.Program, bool) {
	p, ok := programOf(c)
	return reqtrace.Program{User: p.User, PID: p.PID, Name: p.Name}, ok
}

// reportDevice reports the present state of a link's device to the recorder.
func (t *linkTable) reportDevice(l *rdmaLink) { t.reportDeviceAs(l, "", nil) }

// reportLoss reports to the recorder that a device is lost, or is about to be lost, with the programs that have opened
// it. how describes the loss; "" means the present state of the device.
func (s *Service) reportLoss(l *rdmaLink, how string) {
	var programs []explain.Program
	for _, p := range s.uverbs.Processes(l.spec.Name) {
		programs = append(programs, programOfProcess(p))
	}
	s.links.reportDeviceAs(l, how, programs)
}

// reportStop reports the loss of each device that works when the service ends.
func (s *Service) reportStop() {
	s.links.mu.Lock()
	links := slices.Clone(s.links.list)
	s.links.mu.Unlock()
	for _, l := range links {
		if s.uverbs != nil && l.slot.Device() != nil {
			s.reportLoss(l, explain.ServiceStopped)
		}
	}
}

// reportDeviceAs is reportDevice for a device that lost describes, if it is not "".
func (t *linkTable) reportDeviceAs(l *rdmaLink, lost string, programs []explain.Program) {
	t.mu.Lock()
	dev, host := l.dev, *l.host
	port := l.port.adjustedInterface(host)
	t.mu.Unlock()
	down := ""
	switch {
	case !host.Up || !host.Running:
		down = host.Name
	case !port.Up || !port.Running:
		down = l.spec.Name
	}
	if lost == "" {
		switch st, hw := l.slot.Status().State, l.hw.State(); {
		case hw != driver.Running:
			lost = hw.String()
		case st == slot.Recovering:
			lost = "being reset"
		case st != slot.Running:
			lost = st.String()
		}
	}
	var addrs []netip.Addr
	for _, e := range dev.Endpoints() {
		addrs = append(addrs, e.Addr())
	}
	now := time.Now()
	t.causes.SetDevice(explain.DeviceState{
		Name: l.spec.Name, Addrs: addrs, Down: down, Lost: lost, Since: now, Programs: programs,
	})
	text := "port up"
	switch {
	case lost != "":
		text = "device " + lost
	case down != "":
		text = "port down"
	}
	t.requests.DeviceChanged(now, l.spec.Name, text)
}

// explain returns the causes of failures that a user may see. Managers see the facts of both ends. It may sleep.
func (l *failureLog) explain(who peer, r ctl.Explain) []qpinfo.Cause {
	now := time.Now()
	return l.causes.Causes(explain.Query{
		Sees: who.SeesAccount, All: who.Manager, Last: r.Last, QP: r.QP, Session: r.Session,
		Now: now, Pending: l.pendingConnections(now),
	})
}

// unansweredFor is the time without an answer after which a connection request is a cause although it is repeated.
const unansweredFor = 5 * time.Second

// pendingConnections returns the connection requests of programs that have no answer for some time. It may sleep.
func (l *failureLog) pendingConnections(now time.Time) (list []explain.FailedConnection) {
	if l.cm == nil {
		return nil
	}
	for _, x := range l.cm.IDs() {
		if !x.View.Unanswered || now.Sub(x.View.Asked) < unansweredFor {
			continue
		}
		f := explain.FailedConnection{
			Time: now, Program: explain.Program{User: x.Owner, PID: x.PID, Name: commandName(x.PID), Session: x.Session},
			Event: explain.ConnectionUnreachable, Local: x.View.Src, Remote: x.View.Dst, Since: x.View.Asked,
		}
		if d := x.View.Device; d != nil {
			f.Device = d.Name()
		}
		list = append(list, f)
	}
	return list
}
