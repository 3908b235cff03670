package explain

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/gendoc"
	"verbena/internal/qpinfo"
	"verbena/internal/quota"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

var (
	here  = netip.MustParseAddr("10.0.0.1")
	there = netip.MustParseAddr("10.0.0.2")
	begin = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

// program is a context of a program.
type program struct {
	ib.UserContext
	Program
}

func programOf(c ib.UserContext) (Program, bool) {
	p, ok := c.(*program)
	if !ok {
		return Program{}, false
	}
	return p.Program, true
}

// ends is a Recorder with two connected queue pairs: 17 on rxe0 of user 1, and 18 on rxe1 of the user of the test.
type ends struct {
	*Recorder
	t    *testing.T
	a, b driver.QPRef

	foreign      int  // answers with a foreign PSN to the failed work request
	acknowledged bool // the peer has acknowledged packets before
}

func newEnds(t *testing.T, peer int) *ends {
	e := &ends{Recorder: New(Config{Program: programOf}), t: t}
	e.SetDevice(DeviceState{Name: "rxe0", Addrs: []netip.Addr{here}})
	e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}})
	e.a = driver.QPRef{Device: "rxe0", Num: 17, Type: ib.QPTypeRC, State: ib.QPRTS, Local: here, Peer: there, DestQPN: 18,
		Context: &program{Program: Program{User: quota.ID{UID: 1}, PID: 100, Name: "client"}}}
	e.b = driver.QPRef{Device: "rxe1", Num: 18, Type: ib.QPTypeRC, State: ib.QPRTS, Local: there, Peer: here, DestQPN: 17,
		Context: &program{Program: Program{User: quota.ID{UID: peer}, PID: 200, Name: "server"}}}
	e.StateChanged(driver.StateChange{Time: begin, QP: e.a, From: ib.QPInit, To: ib.QPRTS})
	e.StateChanged(driver.StateChange{Time: begin, QP: e.b, From: ib.QPInit, To: ib.QPRTS})
	return e
}

func after(d time.Duration) time.Time { return begin.Add(d) }

// enter changes the state of a queue pair.
func (e *ends) enter(qp driver.QPRef, at time.Duration, to ib.QPState, why driver.StateCause) {
	from := qp.State
	qp.State = to
	e.StateChanged(driver.StateChange{Time: after(at), QP: qp, From: from, To: to, Cause: why})
}

// impair reports impaired packets.
func (e *ends) impair(device string, qp uint32, at time.Duration, x link.Impairment) {
	x.QP = qp
	e.PacketsImpaired(ImpairedPackets{Time: after(at), Device: device, Impairment: x})
}

// fail makes a work request of QP 17 fail 4.7 s after the beginning. It was sent first after 1 s.
func (e *ends) fail(status uapi.WCStatus, v driver.Violation) {
	e.CompletionFailed(driver.FailedCompletion{
		Time: after(4700 * time.Millisecond), QP: e.a, WRID: 5, Opcode: uapi.WRSend, Status: status, Length: 8192,
		PSN: 4711, Attempts: 8,
		Since: after(time.Second), Violation: v, Timeout: 67108864 * time.Nanosecond,
		Foreign: driver.ForeignPSN{PSN: 9000, N: e.foreign}, Acknowledged: e.acknowledged,
	})
}

// last returns the latest cause of a user.
func (e *ends) last(uid int, all bool) qpinfo.Cause {
	e.t.Helper()
	list := e.Causes(Query{Sees: func(id quota.ID) bool { return id.UID == uid }, All: all, Last: 1})
	if len(list) != 1 {
		e.t.Fatalf("causes of user %d: got %d, want 1", uid, len(list))
	}
	return list[0]
}

// TestTimeout tests the cause of a work request without an answer, for each state of the other end.
func TestTimeout(t *testing.T) {
	const unanswered = "QP 17: transport retry counter exceeded: PSN 4711 sent 8 times in 3.7 s without an answer; "
	for _, c := range []struct {
		name   string
		peer   int // user of the other end
		facts  func(e *ends)
		row    string
		text   string
		fault  string
		hidden string // row for the user, if the other end belongs to another user
	}{
		{name: "receive too short", peer: 1, facts: func(e *ends) {
			e.RequestRefused(driver.RefusedRequest{Time: after(4300 * time.Millisecond), QP: e.b, PSN: 4711, Answered: true,
				Syndrome: roce.NAKInvalidRequest, Violation: driver.Violation{Rule: driver.RuleReceiveLength,
					Limit: 4096, Length: 5120, More: true}})
			e.enter(e.b, 4300*time.Millisecond, ib.QPErr, driver.StateCause{Reason: driver.ByPeer, Status: uapi.WCLocLenErr})
		}, row: "peer-in-error", fault: "the peer",
			text: unanswered + "the peer's QP 18 has been in ERR since 400 ms earlier (receive too short: 4096 of 8192 bytes)"},
		{name: "modified to ERR", peer: 1, facts: func(e *ends) {
			e.enter(e.b, time.Second, ib.QPErr, driver.StateCause{Reason: driver.ByProgram})
		}, row: "peer-in-error", fault: "the peer",
			text: unanswered + "the peer's QP 18 has been in ERR since 3.7 s earlier (its program has modified it)"},
		{name: "modified to ERR by another user", peer: 2, facts: func(e *ends) {
			e.enter(e.b, time.Second, ib.QPErr, driver.StateCause{Reason: driver.ByProgram})
		}, row: "peer-in-error", fault: "the peer", hidden: "no-own-qp"},
		{name: "destroyed", peer: 1, facts: func(e *ends) {
			e.enter(e.b, time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}, row: "peer-closed", fault: "the peer", text: unanswered + "the peer's QP 18 was destroyed 3.7 s earlier"},
		{name: "ended", peer: 1, facts: func(e *ends) {
			e.b.Context.(*program).Ending = true
			e.enter(e.b, time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}, row: "peer-ended", fault: "the peer",
			text: unanswered + "the peer's program (process 200) ended 3.7 s earlier, and with it QP 18"},
		{name: "ended, of another user", peer: 2, facts: func(e *ends) {
			e.b.Context.(*program).Ending = true
			e.enter(e.b, time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}, row: "peer-ended", fault: "the peer", hidden: "no-own-qp"},
		{name: "INIT", peer: 1, facts: func(e *ends) {
			e.forgetQP(e.qps[qpKey{"rxe1", 18}]) // it has never received
			e.b.State = ib.QPReset
			e.enter(e.b, 0, ib.QPInit, driver.StateCause{Reason: driver.ByProgram})
		}, row: "peer-not-ready", fault: "the peer", text: unanswered + "the peer's QP 18 is in INIT"},
		{name: "reset", peer: 1, facts: func(e *ends) {
			e.enter(e.b, time.Second, ib.QPReset, driver.StateCause{Reason: driver.ByProgram})
		}, row: "peer-reset", fault: "the peer",
			text: unanswered + "the peer's program moved its QP 18 to RESET 3.7 s earlier"},
		{name: "connected elsewhere", peer: 1, facts: func(e *ends) {
			e.PacketsDropped(driver.DroppedPackets{Time: after(2 * time.Second), QP: e.b, Source: here,
				Reason: driver.DropSource, Packets: 1})
		}, row: "peer-other", fault: "both ends", text: unanswered + "the peer's QP 18 is connected to another QP"},
		{name: "an older drop", peer: 1, facts: func(e *ends) {
			e.PacketsDropped(driver.DroppedPackets{Time: after(time.Second / 2), QP: e.b, Source: here,
				Reason: driver.DropSource, Packets: 1})
		}, row: "no-answer-here", fault: "unknown", text: unanswered + "the peer's QP 18 is in RTS; the reason is unknown"},
		{name: "link down", peer: 1, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Down: "rxe1", Since: after(time.Second)})
		}, row: "peer-port-down", fault: "the network", text: unanswered + "the port of the peer's device rxe1 has been down since 12:00:01.000"},
		{name: "own link down", peer: 2, facts: func(e *ends) {
			e.PacketsUnsent(driver.UnsentPackets{Time: after(2 * time.Second), QP: e.a, Packets: 1})
			e.SetDevice(DeviceState{Name: "rxe0", Addrs: []netip.Addr{here}, Down: "rxe0", Since: after(time.Second)})
		}, row: "port-down", fault: "the network", text: unanswered + "the port of rxe0 has been down since 12:00:01.000"},
		{name: "own interface down", peer: 2, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe0", Addrs: []netip.Addr{here}, Down: "eth0", Since: after(time.Second)})
		}, row: "port-down-interface", fault: "the network"},
		{name: "own address removed", peer: 2, facts: func(e *ends) {
			e.PacketsUnsent(driver.UnsentPackets{Time: after(2 * time.Second), QP: e.a, Packets: 1})
			e.SetDevice(DeviceState{Name: "rxe0", Since: after(time.Second)})
		}, row: "address-gone", fault: "the network", text: unanswered + "the device rxe0 has lost the address 10.0.0.1 of the connection"},
		{name: "too long for the link", peer: 2, facts: func(e *ends) {
			e.PacketsUnsent(driver.UnsentPackets{Time: after(2 * time.Second), QP: e.a, Packets: 1, Longest: 4112,
				Err: link.ErrTooLong, MTU: 1400})
		}, row: "too-long", fault: "this end", text: unanswered + "packets of 4112 bytes do not fit the MTU 1400 of the interface"},
		{name: "device hung", peer: 2, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Lost: "hung", Since: after(time.Second)})
		}, row: "peer-device", fault: "the device", text: unanswered + "the peer's device rxe1 is hung since 12:00:01.000"},
		{name: "lost by a rule", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Dropped, Packets: 8})
		}, row: "packets-lost", fault: "injected", text: unanswered + "packets lost by fault rules of rxe0: 8"},
		{name: "lost by a rule before the peer was destroyed", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Dropped, Packets: 8})
			e.enter(e.b, 3*time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}, row: "packets-lost", fault: "injected"},
		{name: "lost by a rule before the request", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 500*time.Millisecond, link.Impairment{Kind: link.Dropped, Packets: 3})
		}, row: "no-answer-here", fault: "unknown", hidden: "no-answer-here"},
		{name: "some transmissions lost", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Dropped, Packets: 7})
		}, row: "no-answer-here", fault: "unknown"},
		{name: "lost, and the PSNs differ", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Dropped, Packets: 8})
			e.foreign = 1
		}, row: "psn-mismatch", fault: "both ends"},
		{name: "lost, and no such QP", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Dropped, Packets: 8})
			e.a.DestQPN = 99
			e.PacketsDropped(driver.DroppedPackets{Time: after(2 * time.Second), QP: driver.QPRef{Device: "rxe1", Num: 99},
				Source: here, Reason: driver.DropNoQP, Packets: 1})
		}, row: "no-qp", fault: "this end", hidden: "packets-lost"},
		{name: "link of the peer down at first, and its QP destroyed later", peer: 1, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Down: "rxe1", Since: begin})
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Since: after(3 * time.Second)})
			e.enter(e.b, 2*time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}, row: "port-was-down", fault: "the network"},
		{name: "connected again at the peer only", peer: 1, facts: func(e *ends) {
			e.enter(e.b, 500*time.Millisecond, ib.QPReset, driver.StateCause{})
			e.b.State = ib.QPInit
			e.enter(e.b, 700*time.Millisecond, ib.QPRTR, driver.StateCause{})
		}, row: "peer-reconnected", fault: "both ends",
			text: unanswered + "the peer's QP 18 was reset and connected again 4.0 s " +
				"earlier, and this QP was not"},
		{name: "damaged by a rule", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Damaged, Packets: 8})
		}, row: "packets-damaged", fault: "injected"},
		{name: "answers lost by the link", peer: 1, facts: func(e *ends) {
			e.impair("rxe1", 18, 2*time.Second, link.Impairment{Kind: link.Lost, Packets: 8})
		}, row: "packets-lost-by-link", fault: "injected"},
		{name: "queue of the link full", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Overflowed, Packets: 8})
		}, row: "link-overflow", fault: "injected"},
		{name: "delayed in both directions", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Delayed, Packets: 8, Delay: 3 * time.Second})
			e.impair("rxe1", 18, 2*time.Second, link.Impairment{Kind: link.Delayed, Packets: 8, Delay: time.Second})
		}, row: "packets-delayed", fault: "injected", text: unanswered + "packets were delayed by 4.0 s at rxe1, and all " +
			"transmissions together waited 3.7 s (local ACK timeout 67.1 ms)"},
		{name: "delayed by less than the wait", peer: 1, facts: func(e *ends) {
			e.impair("rxe0", 17, 2*time.Second, link.Impairment{Kind: link.Delayed, Packets: 8, Delay: 500 * time.Millisecond})
		}, row: "no-answer-here", fault: "unknown", hidden: "no-answer-here"},
		{name: "the PSNs of the ends differ", peer: 1, facts: func(e *ends) { e.foreign = 2 },
			row: "psn-mismatch", fault: "both ends",
			text: unanswered + "the peer answered for PSN 9000, which this QP has never sent (2 times)"},
		{name: "peer's device reset", peer: 1, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Lost: "being reset", Since: after(2 * time.Second)})
			e.enter(e.b, 2*time.Second, ib.QPErr, driver.StateCause{Reason: driver.ByDevice})
			e.enter(e.b, 2*time.Second, ib.QPErr, driver.StateCause{Reason: driver.ByDestroy})
			e.SetDevice(DeviceState{Name: "rxe1", Addrs: []netip.Addr{there}, Since: after(3 * time.Second)})
		}, row: "peer-device-was", fault: "the device",
			text: unanswered + "the peer's device rxe1 was being reset 2.7 s earlier, " +
				"and its QPs ended"},
		{name: "peer's device unplugged", peer: 2, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Lost: "unplugged", Since: after(2 * time.Second)})
		}, row: "peer-device", fault: "the device"},
		{name: "modified to ERR, and then ended", peer: 1, facts: func(e *ends) {
			e.enter(e.b, time.Second, ib.QPErr, driver.StateCause{Reason: driver.ByProgram})
			e.b.State = ib.QPErr
			e.b.Context.(*program).Ending = true
			e.enter(e.b, 4*time.Second, ib.QPErr, driver.StateCause{Reason: driver.ByDestroy})
		}, row: "peer-in-error", fault: "the peer",
			text: unanswered + "the peer's QP 18 has been in ERR since 3.7 s earlier " +
				"(its program has modified it)"},
		{name: "no such QP", peer: 1, facts: func(e *ends) {
			e.a.DestQPN = 99
			e.PacketsDropped(driver.DroppedPackets{Time: after(2 * time.Second), QP: driver.QPRef{Device: "rxe1",
				Num: 99}, Source: here,
				Reason: driver.DropNoQP, Packets: 1})
		}, row: "no-qp", fault: "this end", text: unanswered + "10.0.0.2 has no QP 99", hidden: "no-own-qp"},
		{name: "no QP any more", peer: 1, facts: func(e *ends) {
			e.a.DestQPN, e.acknowledged = 99, true
			e.PacketsDropped(driver.DroppedPackets{Time: after(2 * time.Second), QP: driver.QPRef{Device: "rxe1",
				Num: 99}, Source: here,
				Reason: driver.DropNoQP, Packets: 1})
		}, row: "no-qp-more", fault: "the peer", hidden: "no-answer-more",
			text: unanswered + "10.0.0.2 has no QP 99 any more; the QP has acknowledged packets before"},
		{name: "another host that has acknowledged packets", peer: 1, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Since: after(time.Second)})
			e.acknowledged = true
		}, row: "no-answer-more", fault: "unknown"},
		{name: "service stopped", peer: 1, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Lost: ServiceStopped, Since: after(2 * time.Second)})
		}, row: "service-stopped", fault: "injected",
			text: unanswered + "the service was stopped at 12:00:02.000, and its devices with it"},
		{name: "another host", peer: 1, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Since: after(time.Second)})
		}, row: "no-answer", fault: "unknown", text: unanswered + "no answer from 10.0.0.2"},
		{name: "device removed", peer: 1, facts: func(e *ends) {
			e.SetDevice(DeviceState{Name: "rxe1", Lost: Removed, Since: after(time.Second)})
		}, row: "peer-device", fault: "the device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, c.peer)
			c.facts(e)
			e.fail(uapi.WCRetryExcErr, driver.Violation{})
			got := e.last(1, true)
			if got.Row != c.row || got.Fault != c.fault || c.text != "" && got.String() != c.text {
				t.Errorf("cause: got %s, %s: %s; want %s, %s: %s", got.Row, got.Fault, &got, c.row, c.fault, c.text)
			}
			want := c.row
			if c.hidden != "" {
				want = c.hidden
			}
			own := e.last(1, false)
			if own.Row != want {
				t.Errorf("cause for its user: got %s, want %s", own.Row, want)
			}
			if text := fmt.Sprintf("%+v", own); c.hidden != "" && (strings.Contains(text, "200") ||
				strings.Contains(text, "server") ||
				strings.Contains(text, "ERR since")) {
				t.Errorf("cause for its user: got facts of another user: %s", text)
			}
		})
	}
}

// TestRefused tests the causes of both ends if a responder refuses a request.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name      string
		v         driver.Violation
		nak       roce.Syndrome
		status    uapi.WCStatus
		row, text string
		requester string // end at fault, from the view of the requester
		responder string
	}{
		{"key", driver.Violation{Rule: driver.RuleKey, Key: 0x1234}, roce.NAKRemoteAccessError, uapi.WCRemAccessErr, "key",
			"no memory region or window has the key 0x1234", "this end", "the peer"},
		{"right", driver.Violation{Rule: driver.RuleRight, Key: 0x12, Right: ib.AccessRemoteWrite}, roce.NAKRemoteAccessError,
			uapi.WCRemAccessErr, "right", "the region of key 0x12 does not grant REMOTE_WRITE", "the peer", "this end"},
		{"short receive", driver.Violation{Rule: driver.RuleReceiveLength, Limit: 16, Length: 4096, More: true},
			roce.NAKInvalidRequest,
			uapi.WCRemInvReqErr, "receive-too-short", "receive too short: 16 of 8192 bytes", "the peer", "this end"},
		{"key of the receive", driver.Violation{Rule: driver.RuleKey, Key: 7}, roce.NAKRemoteOperationalError,
			uapi.WCRemOpErr, "key",
			"no memory region or window has the key 0x7", "the peer", "this end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, peer := range []int{1, 2} {
				e := newEnds(t, peer)
				e.RequestRefused(driver.RefusedRequest{Time: after(4 * time.Second), QP: e.b, PSN: 4711,
					Answered: true, Syndrome: c.nak,
					Violation: c.v})
				if got := e.last(peer, false); got.Row != c.row || got.Fault != c.responder || got.QP != 18 {
					t.Errorf("cause at the responder: got %+v, want %s at %s", got, c.row, c.responder)
				}
				e.fail(c.status, driver.Violation{})
				got := e.last(1, true)
				if got.Row != c.row || got.Fault != c.requester || got.Why != c.text {
					t.Errorf("cause at the requester: got %+v, want %s: %s", got, c.row, c.text)
				}
				if got := e.last(1, false); peer == 2 && (got.Row != "peer-refused" || got.Fault != "unknown") {
					t.Errorf("cause for a user who does not see the responder: got %+v, want peer-refused", got)
				}
			}
		})
	}
}

// TestRefusalOfAnotherRequest tests that a refusal of an earlier request explains no later one.
func TestRefusalOfAnotherRequest(t *testing.T) {
	e := newEnds(t, 1)
	e.RequestRefused(driver.RefusedRequest{Time: after(2 * time.Second), QP: e.b, PSN: 4710, Answered: true,
		Syndrome: roce.NAKRemoteAccessError, Violation: driver.Violation{Rule: driver.RuleKey}})
	e.fail(uapi.WCRemAccessErr, driver.Violation{})
	if got := e.last(1, true); got.Row != "peer-refused" || got.Fault != "unknown" {
		t.Errorf("cause: got %+v, want peer-refused", got)
	}
}

// TestFlushed tests that flushed work requests count for the failure before them, or name the reason for ERR.
func TestFlushed(t *testing.T) {
	e := newEnds(t, 1)
	e.enter(e.a, time.Second, ib.QPErr, driver.StateCause{Reason: driver.BySend})
	e.a.State = ib.QPErr
	e.fail(uapi.WCLocProtErr, driver.Violation{Rule: driver.RuleKey, Key: 3})
	for range 3 {
		e.fail(uapi.WCWRFlushErr, driver.Violation{})
	}
	if got := e.last(1, false); got.Row != "key" || got.Flushed != 3 || got.Fault != "this end" {
		t.Errorf("cause: got %+v, want key with 3 flushed work requests", got)
	}
	for reason, row := range map[driver.StateReason]string{
		driver.ByProgram: "modified", driver.ByDevice: "device-error", driver.ByContext: "context-ended",
		driver.ByQueueMemory: "queue-memory",
	} {
		e := newEnds(t, 1)
		e.a.State = ib.QPErr
		e.enter(e.a, time.Second, ib.QPErr, driver.StateCause{Reason: reason})
		e.fail(uapi.WCWRFlushErr, driver.Violation{})
		e.fail(uapi.WCWRFlushErr, driver.Violation{})
		if got := e.last(1, false); got.Row != row || got.Flushed != 2 {
			t.Errorf("flushed after %v: got %+v, want %s with 2 flushed work requests", reason, got, row)
		}
	}
}

// TestSourcesOfDrops tests that the cause of dropped packets names their sources, up to a limit.
func TestSourcesOfDrops(t *testing.T) {
	e := newEnds(t, 1)
	for n := range 3 * maxSources {
		for range 2 {
			e.PacketsDropped(driver.DroppedPackets{Time: after(time.Second), QP: e.b, Reason: driver.DropQKey, Packets: 1,
				Source: netip.AddrFrom4([4]byte{10, 0, 1, byte(n)})})
		}
		got := e.last(1, false)
		if want := fmt.Sprintf("10.0.1.%d ", n); strings.Contains(got.What, want) != (n < maxSources) {
			t.Errorf("cause after source %d: got %s, want %s in it: %t", n, got.What, want, n < maxSources)
		}
		if want := n >= maxSources; strings.Contains(got.What, " and others dropped") != want || got.Count != 2*(n+1) {
			t.Errorf("cause after source %d: got %s, want others in it: %t", n, &got, want)
		}
	}
}

// TestNumbersOfOthersAreHidden tests that the causes of a user do not depend on the queue pairs of other users.
func TestNumbersOfOthersAreHidden(t *testing.T) {
	var want string
	for name, facts := range map[string]func(e *ends){
		"no queue pair": func(e *ends) {
			e.enter(e.b, 0, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
			e.forgetQP(e.qps[qpKey{"rxe1", 18}])
			e.PacketsDropped(driver.DroppedPackets{Time: after(2 * time.Second), QP: driver.QPRef{Device: "rxe1", Num: 18},
				Source: here, Reason: driver.DropNoQP, Packets: 1})
		},
		"destroyed": func(e *ends) { e.enter(e.b, 0, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy}) },
		"connected": func(e *ends) {
			e.PacketsDropped(driver.DroppedPackets{Time: after(2 * time.Second), QP: e.b, Source: here,
				Reason: driver.DropSource, Packets: 1})
		},
		"in RESET": func(e *ends) { e.enter(e.b, 0, ib.QPReset, driver.StateCause{}) },
		"in ERR":   func(e *ends) { e.enter(e.b, 0, ib.QPErr, driver.StateCause{Reason: driver.ByProgram}) },
		"of another type": func(e *ends) {
			e.PacketsDropped(driver.DroppedPackets{Time: after(2 * time.Second), QP: e.b, Source: here,
				Reason: driver.DropService, Packets: 1})
		},
		"that loses packets": func(e *ends) {
			e.impair("rxe1", 18, 2*time.Second, link.Impairment{Kind: link.Dropped, Packets: 8})
		},
	} {
		e := newEnds(t, 2)
		facts(e)
		e.fail(uapi.WCRetryExcErr, driver.Violation{})
		got := e.last(1, false)
		got.ID = 0
		if text := fmt.Sprintf("%+v", got); want == "" {
			want = text
		} else if text != want {
			t.Errorf("cause with a queue pair of another user that is %s: got\n%s, want the same as another\n%s", name, text, want)
		}
	}
}

// TestDestroyedAreRemembered tests that one user does not make the Recorder forget queue pairs and keys of another.
func TestDestroyedAreRemembered(t *testing.T) {
	for _, c := range []struct {
		name  string
		churn func(e *ends, who ib.UserContext, n uint32)
		row   string
	}{
		{"queue pairs of another user", func(e *ends, who ib.UserContext, n uint32) {
			e.a.Context.(*program).User = quota.ID{UID: 3}
			qp := driver.QPRef{Device: "rxe0", Num: n, Context: who}
			e.StateChanged(driver.StateChange{Time: begin, QP: qp, To: ib.QPRTS})
			e.StateChanged(driver.StateChange{Time: begin, QP: qp, Cause: driver.StateCause{Reason: driver.ByDestroy}})
		}, "peer-closed"},
		{"queue pairs of the user that were never connected", func(e *ends, who ib.UserContext, n uint32) {
			qp := driver.QPRef{Device: "rxe0", Num: n, Context: e.b.Context}
			e.StateChanged(driver.StateChange{Time: begin, QP: qp, To: ib.QPInit})
			e.StateChanged(driver.StateChange{Time: begin, QP: qp, Cause: driver.StateCause{Reason: driver.ByDestroy}})
		}, "peer-closed"},
		{"keys of another user", func(e *ends, who ib.UserContext, n uint32) {
			e.KeyEnded(driver.EndedKey{Device: "rxe0", Context: who, Key: n, Time: begin})
		}, "peer-closed"},
		{"more queue pairs of the user than are remembered", func(e *ends, who ib.UserContext, n uint32) {
			qp := driver.QPRef{Device: "rxe0", Num: n, Context: e.b.Context}
			e.StateChanged(driver.StateChange{Time: begin, QP: qp, To: ib.QPRTS})
			e.StateChanged(driver.StateChange{Time: begin, QP: qp, Cause: driver.StateCause{Reason: driver.ByDestroy}})
		}, "no-answer-more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, 1)
			e.cfg.Limits.Total, e.cfg.Limits.Destroyed, e.cfg.Limits.Keys = 60, 50, 50
			other := &program{Program: Program{User: quota.ID{UID: 3}, PID: 300}}
			e.KeyEnded(driver.EndedKey{Device: "rxe1", Context: e.b.Context, Key: 5, Time: begin})
			e.enter(e.b, time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
			for n := range uint32(1000) {
				c.churn(e, other, 100+n)
			}
			if e.past > 60 {
				t.Errorf("remembered queue pairs and keys: got %d, want at most 60", e.past)
			}
			if _, ok := e.users[quota.ID{UID: 1}].ended[regionKey{"rxe1", 5}]; !ok {
				t.Errorf("key of the user: got none, want it remembered")
			}
			e.a.Context.(*program).User = quota.ID{UID: 1}
			e.acknowledged = true
			e.fail(uapi.WCRetryExcErr, driver.Violation{})
			if got := e.last(1, true); got.Row != c.row {
				t.Errorf("cause: got %s, want %s", got.Row, c.row)
			}
			n := 0
			for _, u := range e.users {
				n += u.past()
			}
			if n != e.past {
				t.Errorf("remembered queue pairs and keys: got %d, want the sum of all users, %d", e.past, n)
			}
		})
	}
}

// TestCounts tests that repeated drops count for one cause.
func TestCounts(t *testing.T) {
	e := newEnds(t, 1)
	for range 5 {
		e.PacketsDropped(driver.DroppedPackets{Time: after(time.Second), QP: e.b, Source: here,
			Reason: driver.DropQKey, Packets: 2})
	}
	if got := e.last(1, false); got.Row != "dropped-qkey" || got.Count != 10 || got.Fault != "the peer" {
		t.Errorf("cause: got %+v, want 10 packets with the wrong Q_Key", got)
	}
}

// TestLimits tests that a Recorder forgets the oldest causes, queue pairs and users, and never more.
func TestLimits(t *testing.T) {
	r := New(Config{Program: programOf, Limits: Limits{Causes: 10, QPs: 5, Users: 3}})
	for uid := range 6 {
		for n := range 20 {
			qp := driver.QPRef{Device: "rxe0", Num: uint32(100*uid + n), State: ib.QPRTS,
				Context: &program{Program: Program{User: quota.ID{UID: uid}}}}
			r.CompletionFailed(driver.FailedCompletion{Time: after(time.Duration(100*uid+n) * time.Second), QP: qp,
				Status: uapi.WCLocProtErr, Violation: driver.Violation{Rule: driver.RuleKey}})
		}
	}
	for uid := range 6 {
		list := r.Causes(Query{Sees: func(id quota.ID) bool { return id.UID == uid }})
		if uid < 3 {
			if len(list) != 0 {
				t.Errorf("user %d: got %d causes, want none", uid, len(list))
			}
			continue
		}
		if len(list) != 10 || list[0].QP != uint32(100*uid+10) || list[9].QP != uint32(100*uid+19) {
			t.Errorf("user %d: got %d causes, want the latest 10", uid, len(list))
		}
	}
	if len(r.users) != 3 || len(r.qps) != 15 {
		t.Errorf("Recorder: got %d users and %d queue pairs, want 3 and 15", len(r.users), len(r.qps))
	}
	for n := range 10 * maxNoQP {
		r.PacketsDropped(driver.DroppedPackets{Time: begin, QP: driver.QPRef{Device: "rxe0", Num: uint32(n)},
			Reason: driver.DropNoQP})
	}
	if len(r.noQP) != maxNoQP {
		t.Errorf("packets to no QP: got %d facts, want %d", len(r.noQP), maxNoQP)
	}
}

// TestTable checks the rows: unique names, known words, complete columns, and one row for each rule and drop reason.
func TestTable(t *testing.T) {
	if len(rows) != len(Table) {
		t.Errorf("table: got %d different names of %d rows", len(rows), len(Table))
	}
	e := newEnds(t, 1)
	full := &values{q: e.qps[qpKey{"rxe0", 17}], peer: e.qps[qpKey{"rxe1", 18}], peerWhy: "x", at: begin, since: begin,
		v: driver.Violation{Length: 1}, count: 1, device: "x", mtu: 1, owner: e.qps[qpKey{"rxe1", 18}],
		err: "x", reason: "x", port: "x", man: "x"}
	words := regexp.MustCompile(`\{(\w+)\}`)
	for _, r := range Table {
		if r.Name == "" || r.Text == "" || r.Clause == "" || r.Remedy == "" {
			t.Errorf("row %q: got an empty column in %+v", r.Name, r)
		}
		for _, m := range words.FindAllStringSubmatch(r.Text+r.Clause+r.Remedy, -1) {
			if full.value(m[1]) == "" {
				t.Errorf("row %s: word {%s} has no value", r.Name, m[1])
			}
		}
		if got := expand(r.Text, &values{}); strings.ContainsAny(got, "{}") {
			t.Errorf("row %s without values: got %q", r.Name, got)
		}
	}
	for rule, name := range ruleRows {
		if rows[name] == nil {
			t.Errorf("rule %d: got row %q, want one of the table", rule, name)
		}
	}
	for reason, name := range dropRows {
		if rows[name] == nil {
			t.Errorf("drop reason %d: got row %q, want one of the table", reason, name)
		}
	}
	for errno, name := range callRows {
		if rows[name] == nil {
			t.Errorf("errno %v: got row %q, want one of the table", errno, name)
		}
	}
}

// TestDocument compares the table with docs/results/explain.md.
func TestDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("| cause | text | clause | at fault | remedy |\n|---|---|---|---|---|\n")
	for _, r := range Table {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Name, r.Text, r.Clause, r.Fault, r.Remedy)
	}
	gendoc.CheckSection(t, "../docs/results/explain.md", "causes", b.String())
}

// TestReusedNumberKeepsFacts checks that the limit of one user discards no facts of another user, whose queue pair has
// the number of a destroyed one.
func TestReusedNumberKeepsFacts(t *testing.T) {
	contexts := map[ib.UserContext]int{}
	r := New(Config{Limits: Limits{QPs: 1}, Program: func(c ib.UserContext) (Program, bool) {
		return Program{User: quota.ID{UID: contexts[c]}}, true
	}})
	first, second := &struct{ ib.UserContext }{}, &struct{ ib.UserContext }{}
	contexts[first], contexts[second] = 1, 2
	change := func(c ib.UserContext, num uint32, reason driver.StateReason) {
		r.StateChanged(driver.StateChange{QP: driver.QPRef{Device: "rxe0", Num: num, Context: c},
			Cause: driver.StateCause{Reason: reason}})
	}
	change(first, 7, driver.ByProgram)
	change(first, 7, driver.ByDestroy)
	change(second, 7, driver.ByProgram)
	change(first, 8, driver.ByProgram) // exceeds the limit of the first user
	if q := r.qps[qpKey{"rxe0", 7}]; q == nil || q.program.User.UID != 2 {
		t.Errorf("facts of QP 7: got %+v, want those of the second user", q)
	}
}

// TestRepeatedPacketsAllocateNothing checks that only the first of many dropped packets, or refused datagrams, costs a
// text. A peer may send many of them.
func TestRepeatedPacketsAllocateNothing(t *testing.T) {
	context := &struct{ ib.UserContext }{}
	r := New(Config{Program: func(ib.UserContext) (Program, bool) { return Program{}, true }})
	qp := driver.QPRef{Device: "rxe0", Num: 7, Type: ib.QPTypeUD, State: ib.QPRTS, Context: context}
	for name, report := range map[string]func(){
		"dropped": func() {
			r.PacketsDropped(driver.DroppedPackets{Time: begin, QP: qp, Reason: driver.DropQKey, Packets: 1})
		},
		"refused": func() {
			r.RequestRefused(driver.RefusedRequest{Time: begin, QP: qp,
				Violation: driver.Violation{Rule: driver.RuleNoReceive}})
		},
	} {
		report()
		if n := testing.AllocsPerRun(100, report); n != 0 {
			t.Errorf("%s: got %v allocations for each further packet, want 0", name, n)
		}
	}
	counts := map[int]int{}
	for _, c := range r.Causes(Query{Sees: func(quota.ID) bool { return true }}) {
		counts[c.Count]++
	}
	if counts[102] != 2 { // AllocsPerRun calls once more
		t.Errorf("causes by number of occurrences: got %v, want two with 102", counts)
	}
}

// TestEndedKey tests the cause of a request with a key that its owner has taken away.
func TestEndedKey(t *testing.T) {
	for _, c := range []struct {
		name string
		key  driver.EndedKey
		row  string
		at   string // end at fault
		text string
	}{
		{"deregistered", driver.EndedKey{Key: 0x1234, How: driver.RegionDeregistered, Time: after(4 * time.Second)},
			"key-ended", "the peer",
			"the key 0x1234 ended 700 ms earlier: its region was deregistered"},
		{"invalidated", driver.EndedKey{Key: 0x1234, How: driver.Invalidated, Time: after(4 * time.Second)},
			"key-ended", "the peer",
			"the key 0x1234 ended 700 ms earlier: it was invalidated"},
		{"another key", driver.EndedKey{Key: 0x1200, Time: after(4 * time.Second)}, "key", "this end",
			"no memory region or window has the key 0x1234"},
		{"ended later", driver.EndedKey{Key: 0x1234, Time: after(5 * time.Second)}, "key", "this end",
			"no memory region or window has the key 0x1234"},
		{"of the device of the requester", driver.EndedKey{Device: "rxe0", Key: 0x1234, Time: after(time.Second)},
			"key", "this end",
			"no memory region or window has the key 0x1234"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, 1)
			if c.key.Device == "" {
				c.key.Device = "rxe1"
			}
			c.key.Context = e.b.Context
			e.KeyEnded(c.key)
			e.RequestRefused(driver.RefusedRequest{Time: after(4600 * time.Millisecond), QP: e.b, PSN: 4711, Answered: true,
				Syndrome: roce.NAKRemoteAccessError, Violation: driver.Violation{Rule: driver.RuleKey, Key: 0x1234}})
			e.fail(uapi.WCRemAccessErr, driver.Violation{})
			if got := e.last(1, false); got.Row != c.row || got.Fault != c.at || got.Why != c.text {
				t.Errorf("cause: got %s, %s: %s; want %s, %s: %s", got.Row, got.Fault, got.Why, c.row, c.at, c.text)
			}
		})
	}
	t.Run("of another program", func(t *testing.T) {
		e := newEnds(t, 1)
		other := &program{Program: Program{User: quota.ID{UID: 1}, PID: 300}}
		e.KeyEnded(driver.EndedKey{Device: "rxe1", Context: other, Key: 0x1234, Time: after(time.Second)})
		e.RequestRefused(driver.RefusedRequest{Time: after(4600 * time.Millisecond), QP: e.b, PSN: 4711, Answered: true,
			Syndrome: roce.NAKRemoteAccessError, Violation: driver.Violation{Rule: driver.RuleKey, Key: 0x1234}})
		e.fail(uapi.WCRemAccessErr, driver.Violation{})
		if got := e.last(1, false); got.Row != "key" {
			t.Errorf("cause: got %s, want key", got.Row)
		}
	})
	t.Run("bounded", func(t *testing.T) {
		e := newEnds(t, 1)
		limit := e.cfg.Limits.Keys
		for i := range 3 * limit {
			e.KeyEnded(driver.EndedKey{Device: "rxe1", Context: e.b.Context, Key: uint32(i), Time: begin})
		}
		u := e.users[quota.ID{UID: 1}]
		if len(u.ended) != limit || u.keys.len() != limit || cap(u.keys.items) > 4*limit || e.past != limit {
			t.Errorf("remembered keys: got %d and %d of %d, want %d", len(u.ended), u.keys.len(), cap(u.keys.items), limit)
		}
	})
}

// TestWindowIsNamed tests that the text and the remedy name a memory window, not its region.
func TestWindowIsNamed(t *testing.T) {
	e := newEnds(t, 1)
	e.RequestRefused(driver.RefusedRequest{Time: after(4 * time.Second), QP: e.b, PSN: 4711, Answered: true,
		Syndrome:  roce.NAKRemoteAccessError,
		Violation: driver.Violation{Rule: driver.RuleRight, Key: 0x80000012, Window: true, Right: ib.AccessRemoteWrite}})
	got := e.last(1, false)
	if want := "the memory window of key 0x80000012 does not grant REMOTE_WRITE"; got.Why != want {
		t.Errorf("why: got %q, want %q", got.Why, want)
	}
	if want := "bind the window with IBV_ACCESS_REMOTE_WRITE"; got.Remedy != want {
		t.Errorf("remedy: got %q, want %q", got.Remedy, want)
	}
}

// TestDeviceLost tests that each program that has opened a device gets one cause when the device is lost.
func TestDeviceLost(t *testing.T) {
	e := newEnds(t, 2)
	one, two := Program{User: quota.ID{UID: 1}, PID: 100}, Program{User: quota.ID{UID: 2}, PID: 200}
	for range 2 {
		e.SetDevice(DeviceState{Name: "rxe0", Lost: "hung", Since: after(time.Second), Programs: []Program{one, one, two}})
	}
	for uid := 1; uid <= 2; uid++ {
		list := e.Causes(Query{Sees: func(id quota.ID) bool { return id.UID == uid }})
		if len(list) != 1 || list[0].Row != "device-lost" || list[0].Why != "it has been hung since 12:00:01.000" {
			t.Errorf("causes of user %d: got %+v, want one device-lost", uid, list)
		}
	}
	e.SetDevice(DeviceState{Name: "rxe1", Lost: ServiceStopped, Since: after(time.Second), Programs: []Program{two}})
	if got := e.last(2, false); got.Row != "service-stopped" || got.What != "device rxe1 lost" {
		t.Errorf("device lost with its service: got %+v, want service-stopped", got)
	}
	e.SetDevice(DeviceState{Name: "rxe0", Addrs: []netip.Addr{here}, Since: after(2 * time.Second)})
	e.a.State = ib.QPErr
	e.enter(e.a, time.Second, ib.QPErr, driver.StateCause{Reason: driver.ByDevice})
	e.fail(uapi.WCWRFlushErr, driver.Violation{})
	if got := e.last(1, false); got.Row != "device-error" || !strings.Contains(got.Why, "hung") {
		t.Errorf("flushed work request: got %s: %s, want device-error with the reason", got.Row, got.Why)
	}
}

// TestDatagramToNoQP tests that the sender of datagrams to a number that no queue pair has gets one cause.
func TestDatagramToNoQP(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  ib.QPType
		from uint32
		want int
	}{
		{"datagram", ib.QPTypeUD, 17, 1}, {"connection", ib.QPTypeRC, 17, 0}, {"unknown sender", ib.QPTypeUD, 19, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, 2)
			e.a.Type = c.typ
			e.enter(e.a, 0, ib.QPRTS, driver.StateCause{})
			for range 3 {
				e.PacketsDropped(driver.DroppedPackets{Time: after(time.Second), QP: driver.QPRef{Device: "rxe1", Num: 99},
					Source: here, Reason: driver.DropNoQP, Packets: 2, SourceQP: c.from})
			}
			for _, uid := range []int{1, 2} {
				if list := e.Causes(Query{Sees: func(id quota.ID) bool { return id.UID == uid }}); len(list) != 0 {
					t.Errorf("causes for user %d, who must not learn which queue pairs exist: got %+v", uid, list)
				}
			}
			list := e.Causes(Query{Sees: func(id quota.ID) bool { return id.UID == 1 }, All: true})
			if len(list) != c.want || c.want == 1 && (list[0].Row != "datagram-no-qp" || list[0].Count != 6) {
				t.Errorf("causes: got %+v, want %d datagram-no-qp of 6 packets", list, c.want)
			}
		})
	}
}

// TestMemoryOfEndedProcess tests that the end of a process explains that its memory cannot be accessed.
func TestMemoryOfEndedProcess(t *testing.T) {
	for life, row := range map[Life]string{Running: "memory", Ended: "memory-ended", Executed: "memory-executed"} {
		e := newEnds(t, 1)
		e.cfg.Life = func(c ib.UserContext) Life {
			if c == e.b.Context {
				return life
			}
			return Running
		}
		e.RequestRefused(driver.RefusedRequest{Time: after(4 * time.Second), QP: e.b, PSN: 4711, Answered: true,
			Syndrome: roce.NAKRemoteAccessError, Violation: driver.Violation{Rule: driver.RuleMemory}})
		e.fail(uapi.WCRemAccessErr, driver.Violation{})
		if got := e.last(1, false); got.Row != row || got.Fault != "the peer" {
			t.Errorf("life of the process %v: got %s at %s, want %s at the peer", life, got.Row, got.Fault, row)
		}
	}
}
