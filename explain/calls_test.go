package explain

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/quota"
	"verbena/link"
)

// TestCallRefused tests the causes of refused calls.
func TestCallRefused(t *testing.T) {
	for _, c := range []struct {
		err      error
		injected bool
		device   string
		row      string // "": no cause
		what     string
		why      string
		clause   string
	}{
		{err: fmt.Errorf("MODIFY_QP: the path MTU is out of range: %w", syscall.EINVAL), row: "call-invalid",
			what: "call refused: MODIFY_QP",
			why:  "the path MTU is out of range: invalid argument", clause: "ibv_modify_qp(3)"},
		{err: fmt.Errorf("INVOKE_WRITE: REG_MR: over the limit: %w", syscall.ENOMEM), row: "call-memory",
			what: "call refused: REG_MR",
			why:  "over the limit: cannot allocate memory", clause: "ibv_reg_mr(3); getrlimit(2)"},
		{err: fmt.Errorf("QP_CREATE: fault rule 3: %w", syscall.EAGAIN), injected: true, row: "call-injected",
			what: "call refused: QP_CREATE", why: "fault rule 3: resource temporarily unavailable",
			clause: "`verbena fault add --verb`"},
		{err: fmt.Errorf("RESOLVE_IP: no device: %w", syscall.ENODEV), device: "rdma_cm", row: "call-gone",
			what: "call refused: RESOLVE_IP", why: "no device: no such device",
			clause: "rdma_resolve_addr(3); ibv_get_async_event(3)"},
		{err: fmt.Errorf("MODIFY_QP: no way to fe80::1: %w", syscall.ENETUNREACH), row: "call-unreachable",
			what: "call refused: MODIFY_QP", why: "no way to fe80::1: network is unreachable",
			clause: "ibv_modify_qp(3); ip-route(8)"},
		{err: fmt.Errorf("REG_MR: %w", syscall.ERANGE), row: "call-failed", what: "call refused: REG_MR",
			why:    "numerical result out of range",
			clause: "ibv_reg_mr(3)"},
		{err: syscall.EBUSY, row: "call-busy", what: "call refused", why: "device or resource busy",
			clause: "the manual page of the call"},
		{err: fmt.Errorf("QUERY_GID_ENTRY: empty: %w", syscall.ENODATA)},
		{err: fmt.Errorf("ioctl: unknown method: %w", syscall.EPROTONOSUPPORT)},
	} {
		r := New(Config{})
		p := Program{User: quota.ID{UID: 1}, PID: 100}
		for range 3 {
			r.CallRefused(RefusedCall{Time: begin, Program: p, Device: c.device, QP: 17, Err: c.err, Injected: c.injected})
		}
		if other := r.Causes(Query{Sees: func(quota.ID) bool { return true }, QP: 18}); len(other) != 0 {
			t.Errorf("%v: got %+v for another queue pair, want none", c.err, other)
		}
		list := r.Causes(Query{Sees: func(quota.ID) bool { return true }, QP: 17})
		if c.row == "" {
			if len(list) != 0 {
				t.Errorf("%v: got %+v, want no cause", c.err, list)
			}
			continue
		}
		if len(list) != 1 {
			t.Errorf("%v: got %d causes, want 1", c.err, len(list))
			continue
		}
		if x := list[0]; x.Row != c.row || x.What != c.what || x.Why != c.why || x.Clause != c.clause ||
			x.Count != 3 || x.PID != 100 {
			t.Errorf("%v: got %+v, want %s, 3 times: %s; %s (%s)", c.err, x, c.row, c.what, c.why, c.clause)
		}
	}
}

// TestConnectionFailed tests the causes of failed connections, also if the program that has rejected one belongs to
// another user.
func TestConnectionFailed(t *testing.T) {
	local, remote := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:18515")
	for _, c := range []struct {
		name     string
		f        FailedConnection
		rejected int // user of the program that has rejected the connection; 0: none here
		row, why string
		fault    string
		full     string // row for a manager
	}{
		{"no listener", FailedConnection{Reason: 8, Remote: remote}, 0, "no-listener",
			"10.0.0.2 has no listener on port 18515", "this end",
			"no-listener"},
		{"rejected here", FailedConnection{Reason: 28, Remote: remote}, 1, "rejected-program",
			"process 200 rejected it", "the peer",
			"rejected-program"},
		{"rejected by another user", FailedConnection{Reason: 28, Remote: remote}, 2, "rejected-consumer",
			`the connection manager of 10.0.0.2 answered "consumer reject"`, "the peer", "rejected-program"},
		{"full backlog", FailedConnection{Reason: 28, Remote: remote}, 1, "rejected-backlog",
			"process 200 has not accepted earlier requests, and its backlog of 4 is full", "the peer", "rejected-backlog"},
		{"listener at another address", FailedConnection{Reason: 28, Remote: remote}, 1, "rejected-address",
			"process 200 listens on port 18515, but not at 10.0.0.2", "both ends", "rejected-address"},
		{"full backlog of a datagram service", FailedConnection{Reason: 2, Datagram: true, Remote: remote}, 1,
			"rejected-backlog", "process 200 has not accepted earlier requests, and its backlog of 4 is full", "the peer",
			"rejected-backlog"},
		{"no datagram service", FailedConnection{Reason: 1, Datagram: true, Remote: remote}, 0, "no-listener",
			"10.0.0.2 has no listener on port 18515", "this end", "no-listener"},
		{"rejected on another host", FailedConnection{Reason: 28, Remote: remote}, 0, "rejected-consumer",
			`the connection manager of 10.0.0.2 answered "consumer reject"`, "the peer", "rejected-consumer"},
		{"another reason", FailedConnection{Reason: 26, Text: "MTU", Remote: remote}, 0, "rejected",
			"reason 26: MTU", "unknown", "rejected"},
		{"unreachable", FailedConnection{Event: ConnectionUnreachable, Remote: remote}, 0, "unreachable",
			"no answer from 10.0.0.2 to the connection request", "unknown", "unreachable"},
		{"address", FailedConnection{Event: AddressUnresolved, Text: "no route", Remote: remote}, 0,
			"address-error", "no route", "this end",
			"address-error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New(Config{})
			if c.rejected != 0 {
				r.RequestRejected(RejectedRequest{Time: begin, Program: Program{User: quota.ID{UID: c.rejected}, PID: 200},
					From: local, Row: c.full, Backlog: 4})
			}
			c.f.Time, c.f.Local, c.f.Program = begin, local, Program{User: quota.ID{UID: 1}, PID: 100}
			r.ConnectionFailed(c.f)
			for _, all := range []bool{false, true} {
				list := r.Causes(Query{Sees: func(quota.ID) bool { return true }, All: all})
				want := c.row
				if all {
					want = c.full
				}
				if len(list) != 1 || list[0].Row != want || !all && (list[0].Why != c.why || list[0].Fault != c.fault) {
					t.Errorf("cause, both ends %t: got %+v, want %s at %s: %s", all, list, want, c.fault, c.why)
				}
			}
		})
	}
}

// TestUnreachable tests the causes of a connection request without an answer, also while it is repeated.
func TestUnreachable(t *testing.T) {
	remote := netip.AddrPortFrom(there, 18515)
	lost := func(device string, n int) func(e *ends) {
		return func(e *ends) {
			for i := range n {
				e.impair(device, managerQPN, time.Duration(i)*4*time.Second+time.Second,
					link.Impairment{Kind: link.Dropped, Packets: 1})
			}
		}
	}
	for _, c := range []struct {
		name  string
		facts func(e *ends)
		row   string
		fault string
	}{
		{"nothing is known", func(*ends) {}, "unreachable", "unknown"},
		{"own port down", func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe0", Addrs: []netip.Addr{here}, Down: "rxe0", Since: begin})
		}, "port-down", "the network"},
		{"peer's port down", func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Down: "rxe1", Since: after(time.Second)})
		}, "peer-port-down", "the network"},
		{"peer's interface down", func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Down: "eth0", Since: after(time.Second)})
		}, "peer-port-down-interface", "the network"},
		{"peer's port down at first", func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Down: "rxe1", Since: begin})
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Since: after(50 * time.Second)})
		}, "port-was-down", "the network"},
		{"peer's port down before", func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Down: "rxe1", Since: begin.Add(-time.Hour)})
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Since: begin.Add(-time.Minute)})
		}, "unreachable", "unknown"},
		{"peer's device hung", func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Lost: "hung", Since: begin})
		}, "peer-device", "the device"},
		{"all requests lost", lost("rxe0", 15), "packets-lost", "injected"},
		{"all answers lost", lost("rxe1", 15), "packets-lost", "injected"},
		{"two requests lost", lost("rxe0", 2), "unreachable", "unknown"},
		{"messages of a former request lost", func(e *ends) {
			for range 100 {
				e.impair("rxe0", managerQPN, 0, link.Impairment{Kind: link.Dropped, Packets: 1})
			}
		}, "unreachable", "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, 2)
			c.facts(e)
			f := FailedConnection{Time: after(60 * time.Second), Program: Program{User: quota.ID{UID: 1}, PID: 100},
				Event: ConnectionUnreachable, Remote: remote, Device: "rxe0", Since: after(time.Second)}
			pending := e.Causes(Query{Sees: func(id quota.ID) bool { return id.UID == 1 }, Now: f.Time,
				Pending: []FailedConnection{f, {Program: Program{User: quota.ID{UID: 2}}}}})
			if len(pending) != 1 || !pending[0].Lasting || pending[0].Row != c.row || pending[0].PID != 100 {
				t.Errorf("causes while the request is repeated: got %+v, want %s", pending, c.row)
			}
			e.ConnectionFailed(f)
			got := e.last(1, false)
			if got.Row != c.row || got.Fault != c.fault ||
				!strings.HasSuffix(got.What, " not established: no answer for 59.0 s") {
				t.Errorf("cause: got %s at %s: %s, want %s at %s", got.Row, got.Fault, &got, c.row, c.fault)
			}
		})
	}
}
