package explain

import (
	"testing"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/qpinfo"
	"verbena/internal/quota"
	"verbena/roce"
	"verbena/uapi"
)

// refuse makes QP 18 answer PSN 4711 with an RNR NAK.
func (e *ends) refuse(at time.Duration, psn roce.PSN, rule driver.Rule) {
	e.RequestRefused(driver.RefusedRequest{Time: after(at), QP: e.b, PSN: psn, Answered: true,
		Syndrome: roce.RNRNAK(roce.RNRTimer(20)), Violation: driver.Violation{Rule: rule}})
}

// at returns the causes of a user at a time.
func (e *ends) at(uid int, now time.Duration) []qpinfo.Cause {
	return e.Causes(Query{Sees: func(id quota.ID) bool { return id.UID == uid }, Now: after(now)})
}

// TestWaitingForReceive tests the cause of a request for which the peer has no receive, while it is sent without limit.
func TestWaitingForReceive(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(e *ends) // after 3 s
		now  time.Duration // time of the query
		want int           // causes of each user
		last bool          // the causes still last
		row  string
	}{
		{name: "lasts", now: 3 * time.Second, want: 1, last: true, row: "no-receive-yet"},
		{name: "a fault rule", now: 3 * time.Second, want: 1, last: true, row: "rnr-injected",
			end: func(e *ends) {
				for n := range 20 {
					e.refuse(time.Duration(n)*100*time.Millisecond+3*time.Second, 4713, driver.RuleInjected)
				}
			}},
		{name: "no further NAK", now: 10 * time.Second},
		{name: "another request", now: 3 * time.Second, end: func(e *ends) {
			e.refuse(3*time.Second, 4712, driver.RuleNoReceive)
		}},
		{name: "requester destroyed", now: time.Hour, want: 1, row: "no-receive-yet", end: func(e *ends) {
			e.enter(e.a, 3*time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}},
		{name: "responder destroyed", now: time.Hour, want: 1, row: "no-receive-yet", end: func(e *ends) {
			e.enter(e.b, 3*time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}},
		{name: "requester destroyed later", now: time.Hour, end: func(e *ends) {
			e.enter(e.a, 9*time.Second, ib.QPRTS, driver.StateCause{Reason: driver.ByDestroy})
		}},
		{name: "requester reset", now: time.Hour, want: 1, row: "no-receive-yet", end: func(e *ends) {
			e.enter(e.a, 3*time.Second, ib.QPReset, driver.StateCause{})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, 2)
			for n := range 30 {
				at := time.Duration(n) * 100 * time.Millisecond
				if got := e.at(1, at); len(got) != 0 && at < unreadyAfter {
					t.Errorf("causes after %v: got %+v, want none", at, got)
				}
				e.refuse(at, 4711, driver.RuleNoReceive)
			}
			if c.end != nil {
				c.end(e)
			}
			for uid, want := range map[int]struct {
				qp    uint32
				fault string
			}{1: {17, "the peer"}, 2: {18, "this end"}} {
				got := e.at(uid, c.now)
				if len(got) != c.want {
					t.Fatalf("causes of user %d: got %+v, want %d", uid, got, c.want)
				}
				if c.want == 0 {
					continue
				}
				if x := got[0]; x.Row != c.row || x.QP != want.qp || x.Lasting != c.last || x.ID == 0 || x.Since.IsZero() ||
					c.row == "no-receive-yet" && x.Fault != want.fault {
					t.Errorf("cause of user %d: got %+v, want %s of QP %d, lasting: %t", uid, x, c.row, want.qp, c.last)
				}
			}
		})
	}
}

// TestWaitingEndsWithFailure tests that a request that fails after its last RNR NAK has one cause.
func TestWaitingEndsWithFailure(t *testing.T) {
	for _, stateFirst := range []bool{false, true} {
		e := newEnds(t, 1)
		for n := range 30 {
			e.refuse(time.Duration(n)*150*time.Millisecond, 4711, driver.RuleNoReceive)
		}
		toErr := func() {
			e.enter(e.a, 4700*time.Millisecond, ib.QPErr,
				driver.StateCause{Reason: driver.BySend, Status: uapi.WCRNRRetryExcErr})
		}
		if stateFirst {
			toErr()
		}
		e.fail(uapi.WCRNRRetryExcErr, driver.Violation{})
		if !stateFirst {
			toErr()
		}
		if got := e.at(1, 5*time.Second); len(got) != 1 || got[0].Row != "no-receive" || got[0].Lasting {
			t.Errorf("causes, state first %t: got %+v, want one that does not last", stateFirst, got)
		}
	}
}
