package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"verbena/internal/qpinfo"
	"verbena/uapi/verb"
)

// RefusedCall is a call of a program that a device file has refused.
type RefusedCall struct {
	Time    time.Time
	Program Program
	Device  string
	// Err is the error of the call. It wraps a syscall.Errno.
	Err error
	// Injected is set if a fault rule made the call fail.
	Injected bool
}

// probed are errors with which libraries learn the features of a device, or the end of a table. They are no failures.
var probed = []error{
	syscall.EPROTONOSUPPORT, syscall.ENOTTY, syscall.ENODATA, syscall.ENOSPC, syscall.EAGAIN, syscall.EINTR,
}

// CallRefused reports a refused call.
func (r *Recorder) CallRefused(c RefusedCall) {
	var errno syscall.Errno
	errors.As(c.Err, &errno)
	for _, e := range probed {
		if errno == e && !c.Injected {
			return
		}
	}
	text := strings.TrimPrefix(c.Err.Error(), "INVOKE_WRITE: ") // a method that executes a command of the write form
	row := callRows[errno]
	switch {
	case c.Injected:
		row = "call-injected"
	case row == "":
		row = "call-failed"
	}
	name, rest, _ := strings.Cut(text, ": ")
	what := "call refused: " + name
	if rest == "" {
		what, rest = "call refused", text
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.user(c.Program.User)
	if e := u.refused; e != nil && e.own.What == what && e.own.Why == rest && e.own.PID == c.Program.PID &&
		e.own.Device == c.Device {
		e.count(1, 0)
		return
	}
	x := &values{err: rest, man: manualPage(c.Device, name)}
	v := judge(row, x, FaultRequester)
	u.refused = r.add(c.Program, qpinfo.Cause{
		Time: c.Time, Row: v.row.Name, What: what, Why: v.why, Clause: v.clause, Fault: v.fault, Remedy: v.remedy,
		Device: c.Device,
	}, nil)
}

// manuals are the manual pages of the commands and methods of a device file, by their names.
var manuals = func() map[string]string {
	m := map[string]string{}
	for _, v := range verb.Table {
		if v.Name == "" && v.Effect != verb.Posts {
			continue
		}
		for _, c := range v.Commands {
			m[c.String()] = "ibv_" + cmp.Or(v.Name, strings.ToLower(c.String())) + "(3)"
		}
		for _, x := range v.Methods {
			m[x.String()] = "ibv_" + v.Name + "(3)"
		}
	}
	return m
}()

// cmManuals are the manual pages of the commands of the connection manager whose name differs from that of the
// function.
var cmManuals = map[string]string{
	"BIND_IP": "rdma_bind_addr(3)", "BIND": "rdma_bind_addr(3)", "RESOLVE_IP": "rdma_resolve_addr(3)",
	"JOIN_IP_MCAST": "rdma_join_multicast(3)", "JOIN_MCAST": "rdma_join_multicast(3)",
	"LEAVE_MCAST": "rdma_leave_multicast(3)",
}

// manualPage returns the manual page of a command.
func manualPage(device, name string) string {
	page := manuals[name]
	if device == "rdma_cm" {
		if page = cmManuals[name]; page == "" {
			page = "rdma_" + strings.ToLower(name) + "(3)"
		}
	}
	if page == "" || strings.Contains(page, " ") {
		return "the manual page of the call"
	}
	return page
}

// ConnectionEvent is the kind of a failed connection.
type ConnectionEvent uint8

// The following constants are the kinds.
const (
	ConnectionRejected    ConnectionEvent = iota // the peer has rejected the request
	ConnectionUnreachable                        // the peer has not answered
	AddressUnresolved                            // the address or the route was not found
)

// FailedConnection is a connection of the connection manager that was not established.
type FailedConnection struct {
	Time    time.Time
	Program Program
	Event   ConnectionEvent
	// Reason is the reason of a rejection (IBA 12.6.7.2), and Text is its name.
	Reason int
	Text   string
	// Local and Remote are the addresses; zero if unknown.
	Local, Remote netip.AddrPort
	Device        string
}

// rejection is the call of a program that rejects the request of a peer.
type rejection struct {
	program Program
	at      time.Time
}

// rejectionTime is the time for which a rejection explains the event at the other end.
const rejectionTime = 10 * time.Second

// RejectedByProgram reports that a program has rejected a request from an address.
func (r *Recorder) RejectedByProgram(at time.Time, p Program, from netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, x := range r.rejections {
		if at.Sub(x.at) > rejectionTime || len(r.rejections) >= maxNoQP {
			delete(r.rejections, a)
		}
	}
	r.rejections[from] = rejection{p, at}
}

// The reasons of a rejection that have a row (IBA table 112).
const (
	reasonInvalidServiceID = 8
	reasonConsumer         = 28
)

// ConnectionFailed reports a failed connection.
func (r *Recorder) ConnectionFailed(f FailedConnection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	peer := "unknown"
	if f.Remote.IsValid() {
		peer = f.Remote.Addr().String()
	}
	x := &values{reason: fmt.Sprintf("%d: %s", f.Reason, f.Text), port: fmt.Sprint(f.Remote.Port()), peerAddr: peer,
		err: f.Text}
	row := "rejected"
	what := fmt.Sprintf("connection to %s rejected", f.Remote)
	var other *rejection
	switch {
	case f.Event == AddressUnresolved:
		row, what = "address-error", fmt.Sprintf("address %s not resolved", peer)
	case f.Event == ConnectionUnreachable:
		row, what = "unreachable", fmt.Sprintf("connection to %s not established", f.Remote)
	case f.Reason == reasonInvalidServiceID:
		row = "no-listener"
	case f.Reason == reasonConsumer:
		row = "rejected-consumer"
		if o, ok := r.rejections[f.Local]; ok && f.Time.Sub(o.at) <= rejectionTime {
			other = &o
		}
	}
	cause := func(v verdict) qpinfo.Cause {
		c := qpinfo.Cause{
			Time: f.Time, Row: v.row.Name, What: what, Why: v.why, Clause: v.clause, Fault: v.fault,
			Remedy: v.remedy, Device: f.Device,
		}
		if f.Remote.IsValid() {
			c.Peer = peer
		}
		return c
	}
	own := cause(judge(row, x, FaultRequester))
	var full *qpinfo.Cause
	if other != nil {
		x.peerPID = other.program.PID
		c := cause(judge("rejected-program", x, FaultRequester))
		if full = &c; other.program.User == f.Program.User {
			own, full = c, nil
		}
	}
	r.add(f.Program, own, full)
}
