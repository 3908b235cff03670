package uverbs

import (
	"errors"
	"syscall"
	"testing"

	"verbena/uapi"
)

// TestErrorNamesQP checks that the error of a command for a queue pair names it, in both forms of the commands.
func TestErrorNamesQP(t *testing.T) {
	for _, how := range []commandForm{byWrite, byIoctl} {
		p := newFixture(t).startProgram(how)
		pd, cq := p.allocPD(), p.createCQ(-1, 0)
		qp := p.createQP(pd, cq, 0, uapi.QPTRC)
		modify := func(handle uint32, mask uapi.QPAttrMask) error {
			_, err := sendPlain[struct{}](p, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: handle, AttrMask: mask, QPState: 1 << 7})
			return err
		}
		_, post := postWRs(p, uapi.CmdPostSend, qp.QPHandle, []uapi.SendWR(nil), nil)
		for _, c := range []struct {
			what string
			err  error
			num  uint32 // 0: no queue pair
		}{
			{"state 128", modify(qp.QPHandle, uapi.QPAttrState), qp.QPN},
			{"unknown attribute", modify(qp.QPHandle, 1<<31), qp.QPN},
			{"post in RESET", post, qp.QPN},
			{"no such handle", modify(qp.QPHandle+1000, uapi.QPAttrState), 0},
			{"handle of a protection domain", modify(pd, uapi.QPAttrState), 0},
		} {
			var e *QPError
			if found := errors.As(c.err, &e); c.err == nil || found != (c.num != 0) ||
				found && (e.Num != c.num || e.Device != p.f.dev.ib.Name()) {
				t.Errorf("%s: got error %v with %+v, want QP %d", c.what, c.err, e, c.num)
			}
			var errno syscall.Errno
			if !errors.As(c.err, &errno) {
				t.Errorf("%s: got error %v, want one with an errno", c.what, c.err)
			}
		}
		if err := p.f.Ring(p, qp.QPHandle); how == byWrite {
			var e *QPError
			if !errors.As(err, &e) || e.Num != qp.QPN {
				t.Errorf("doorbell in RESET: got %v, want an error of QP %d", err, qp.QPN)
			}
		}
	}
}
