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
	"verbena/link"
	"verbena/uapi/verb"
)

// RefusedCall is a call of a program that a device file has refused.
type RefusedCall struct {
	Time    time.Time
	Program Program
	Device  string
	QP      uint32 // 0 if the call concerns no queue pair
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
		e.own.Device == c.Device && e.own.QP == c.QP {
		e.count(1, 0)
		return
	}
	x := &values{err: rest, man: manualPage(c.Device, name)}
	v := judge(row, x, FaultRequester)
	u.refused = r.add(c.Program, qpinfo.Cause{
		Time: c.Time, Row: v.row.Name, What: what, Why: v.why, Clause: v.clause, Fault: v.fault, Remedy: v.remedy,
		Device: c.Device, QP: c.QP,
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
	// Reason is the reason of a rejection (IBA 12.6.7.2), and Text is its name. For the request of a datagram service,
	// Reason is the status of the SIDR REP (IBA 12.11.2.1).
	Reason   int
	Text     string
	Datagram bool
	Since    time.Time // when the program requested the connection; zero if unknown
	// Local and Remote are the addresses; zero if unknown.
	Local, Remote netip.AddrPort
	Device        string
}

// RejectedRequest is a connection request that this service has rejected.
type RejectedRequest struct {
	Time    time.Time
	Program Program        // the listening program
	From    netip.AddrPort // address of the requester
	Row     string         // row of the table
	Backlog int            // backlog of the listener, for the row "rejected-backlog"
}

// rejectionTime is the time for which a rejection explains the event at the other end.
const rejectionTime = 10 * time.Second

// RequestRejected reports a rejected request. The failure of the connection at the other end follows, if it is here.
func (r *Recorder) RequestRejected(f RejectedRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, x := range r.rejections {
		if f.Time.Sub(x.Time) > rejectionTime || len(r.rejections) >= maxRejections {
			delete(r.rejections, a)
		}
	}
	r.rejections[f.From] = f
}

// The reasons of a rejection that have a row (IBA table 112).
const (
	reasonInvalidServiceID = 8
	reasonConsumer         = 28
)

// The statuses of a SIDR REP that have a row (IBA 12.11.2.1).
const (
	sidrUnsupported = 1
	sidrRejected    = 2
)

// ConnectionFailed reports a failed connection.
func (r *Recorder) ConnectionFailed(f FailedConnection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, full := r.judgeConnection(&f)
	r.add(f.Program, own, full)
}

// judgeConnection returns the cause of a failed connection for its user, and for a user who sees both ends; full is nil
// if they are the same.
//
//verbena:held mu
func (r *Recorder) judgeConnection(f *FailedConnection) (own qpinfo.Cause, full *qpinfo.Cause) {
	peer := "unknown"
	if f.Remote.IsValid() {
		peer = f.Remote.Addr().String()
	}
	x := &values{at: f.Time, reason: fmt.Sprintf("%d: %s", f.Reason, f.Text), port: fmt.Sprint(f.Remote.Port()),
		peerAddr: peer, err: f.Text}
	row := "rejected"
	what := fmt.Sprintf("connection to %s rejected", f.Remote)
	var other *RejectedRequest
	switch {
	case f.Event == AddressUnresolved:
		row, what = "address-error", fmt.Sprintf("address %s not resolved", peer)
	case f.Event == ConnectionUnreachable:
		row, what = r.judgeUnreachable(f, x), fmt.Sprintf("connection to %s not established", f.Remote)
		if !f.Since.IsZero() {
			what += ": no answer for " + formatDuration(f.Time.Sub(f.Since))
		}
	case f.Reason == reasonInvalidServiceID && !f.Datagram, f.Reason == sidrUnsupported && f.Datagram:
		row = "no-listener"
	case f.Reason == reasonConsumer && !f.Datagram, f.Reason == sidrRejected && f.Datagram:
		row = "rejected-consumer"
		if o, ok := r.rejections[f.Local]; ok && f.Time.Sub(o.Time) <= rejectionTime {
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
	own = cause(judge(row, x, FaultRequester))
	if other != nil {
		x.peerPID, x.v.Limit = other.Program.PID, uint64(other.Backlog)
		c := cause(judge(other.Row, x, FaultRequester))
		if full = &c; other.Program.User == f.Program.User {
			own, full = c, nil
		}
	}
	return own, full
}

// requestInterval is the time between two transmissions of a connection request (CMA_CM_RESPONSE_TIMEOUT).
const requestInterval = 4295 * time.Millisecond

// judgeUnreachable returns the row of a connection request without an answer, and sets its values. Losses explain it if
// they are as many as the transmissions.
//
//verbena:held mu
func (r *Recorder) judgeUnreachable(f *FailedConnection, x *values) string {
	own, peer := r.devices[f.Device], r.byAddr[f.Remote.Addr()]
	began := f.Since
	if began.IsZero() {
		began = f.Time
	}
	if own.wasDown(began) || own.wasDown(f.Time) {
		x.device, x.port, x.since = own.Name, own.down, own.downAt
		return downRow("port-down", own)
	}
	switch {
	case peer != nil && peer.Lost != "" && !peer.Since.After(f.Time):
		x.device, x.reason, x.since = peer.Name, peer.Lost, peer.Since
		return "peer-device"
	case peer.wasDown(began) || peer.wasDown(f.Time):
		x.device, x.port, x.since = peer.Name, peer.down, peer.downAt
		return downRow("peer-port-down", peer)
	}
	var first *ImpairedPackets
	for _, d := range []*deviceFacts{own, peer} {
		if d == nil {
			continue
		}
		n := 0
		for i := range d.messages {
			if e := &d.messages[i]; !e.Time.Before(began) && e.Kind != link.Delayed {
				if n += e.Packets; first == nil || e.Time.Before(first.Time) {
					first = e
				}
			}
		}
		x.count += n
	}
	if first != nil && x.count >= int(f.Time.Sub(began)/requestInterval) {
		x.device = first.Device
		return impairmentRows[first.Kind]
	}
	return "unreachable"
}

// downRow returns the row for a port that is down, or that was down when a request began.
func downRow(row string, d *deviceFacts) string {
	if !d.upAt.IsZero() {
		return "port-was-down"
	}
	return portRow(row, d)
}
