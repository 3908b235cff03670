package service

import (
	"log/slog"
	"net/netip"
	"time"

	"verbena/driver"
	"verbena/explain"
	"verbena/ib"
	"verbena/ib/slot"
	"verbena/internal/ctl"
	"verbena/internal/qpinfo"
	"verbena/uverbs"
)

// newRecorder returns the recorder of the causes of failures. It logs each cause.
func newRecorder(log *slog.Logger) *explain.Recorder {
	return explain.New(explain.Config{
		Program: programOf,
		Found: func(c *qpinfo.Cause) {
			// The caller holds locks. The log queues records of this level for a goroutine.
			//verbena:allow nosleep a goroutine of the log's writes what has this level
			log.Debug("failure", uidKey, c.UID, "pid", c.PID, "dev", c.Device, "cause", c.Row, "why", c.String())
		},
	})
}

// sessionMember is implemented by a uverbs.Process that belongs to a session of the supervisor.
type sessionMember interface{ SessionName() string }

// programOf returns the program of a context. It may not sleep.
func programOf(c ib.UserContext) (explain.Program, bool) {
	p, ending, ok := uverbs.ProcessOf(c)
	if !ok {
		return explain.Program{}, false
	}
	x := explain.Program{User: p.User().ID(), PID: p.PID(), Name: p.Name(), Ending: ending}
	if m, ok := p.(sessionMember); ok {
		x.Session = m.SessionName()
	}
	return x, true
}

// deviceObserver passes the reports of a device on, and logs each queue pair that enters ERR.
type deviceObserver struct {
	*explain.Recorder
	log *slog.Logger
}

// StateChanged implements driver.Observer.
func (o deviceObserver) StateChanged(s driver.StateChange) {
	if s.To == ib.QPErr && s.From != ib.QPErr {
		// The caller holds locks. The log queues records of this level for a goroutine.
		//verbena:allow nosleep a goroutine of the log's writes what has this level
		o.log.Debug("queue pair enters ERR", "dev", s.QP.Device, "qp", s.QP.Num, "why", s.Cause)
	}
	o.Recorder.StateChanged(s)
}

// reportDevice reports the present state of a link's device to the recorder.
func (t *linkTable) reportDevice(l *rdmaLink) { t.reportDeviceAs(l, "") }

// reportDeviceAs does the same for a device that is about to be lost. lost describes how, or is "".
func (t *linkTable) reportDeviceAs(l *rdmaLink, lost string) {
	t.mu.Lock()
	dev := l.dev
	host := l.port.adjustedInterface(*l.host)
	t.mu.Unlock()
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
	t.causes.SetDevice(explain.DeviceState{
		Name: l.spec.Name, Addrs: addrs, Down: !host.Up || !host.Running, Lost: lost, Since: time.Now(),
	}, false)
}

// explainFailures returns the causes of failures that a user may see. Managers see the facts of both ends.
func (s *Service) explainFailures(who peer, r ctl.Explain) []qpinfo.Cause {
	return s.links.causes.Causes(explain.Query{
		Sees: who.SeesAccount, All: who.Manager, Last: r.Last, QP: r.QP, Session: r.Session,
	})
}
