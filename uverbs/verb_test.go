package uverbs

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"verbena/uapi"
)

// TestEveryCommandIsVerb: every command and method can be made to fail, but those that move data.
func TestEveryCommandIsVerb(t *testing.T) {
	data := []uapi.Command{uapi.CmdPostSend, uapi.CmdPostRecv, uapi.CmdPostSRQRecv, uapi.CmdPollCQ}
	for id, c := range commands {
		if (c.verb == "") != slices.Contains(data, id) {
			t.Errorf("%v: verb %q", id, c.verb)
		}
	}
	for id, c := range exCommands {
		if c.verb == "" {
			t.Errorf("%v has no verb", id)
		}
	}
	for id, m := range methods {
		if (verbsOfMethods[id] == "") != (id == methodID{uapi.ObjectDevice, uapi.MethodInvokeWrite}) {
			t.Errorf("%s: verb %q", m.name, verbsOfMethods[id])
		}
	}
	for second, name := range otherNames {
		if v, ok := CanonicalVerb(second); !ok || v != name || !slices.Contains(Verbs(), name) {
			t.Errorf("%s is %q", second, v)
		}
	}
}

// TestOnVerb: a verb that is to fail does so in either form, before anything has been done for it, and goes on otherwise.
func TestOnVerb(t *testing.T) {
	for _, form := range []form{byWrite, byIoctl} {
		w := newWorld(t)
		p := w.start(form)
		pd := p.allocPD()
		cq := p.createCQ(-1, 1)
		qp := p.createQP(pd, cq, 2, uapi.QPTRC).QPHandle
		must(t, silently(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq})) // by the short way
		var calls []string
		fail := true
		w.srv.OnVerb(func(c VerbCall) error {
			calls = append(calls, strings.TrimSuffix(c.Verb+":"+c.State, ":"))
			if c.Device != "rxe0" || c.PID != os.Getpid() || c.Process != "test" {
				t.Errorf("the call is %+v", c)
			}
			if fail {
				return fmt.Errorf("not now: %w", syscall.EDOM)
			}
			return nil
		})
		before := p.f.Info()
		run := func() {
			t.Helper()
			calls = nil
			for i, err := range []error{
				func() error { _, err := do[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{}); return err }(),
				silently(p, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSErr, AttrMask: uapi.QPAttrState}),
				func() error {
					_, _, err := doEx[uapi.ExModifyQPResp](p, uapi.ExCmdModifyQP, uapi.ExModifyQP{Base: uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSReset, AttrMask: uapi.QPAttrState}}, 0)
					return err
				}(),
				silently(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq}),
				func() error {
					_, err := do[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
					return err
				}(),
			} {
				if fail != errors.Is(err, syscall.EDOM) || !fail && err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
			if want := []string{"alloc_pd", "modify_qp:err", "modify_qp:reset", "req_notify_cq", "destroy_qp"}; !slices.Equal(calls, want) {
				t.Errorf("got the calls %q, want %q", calls, want)
			}
		}
		run()
		if after := p.f.Info(); !reflect.DeepEqual(after, before) {
			t.Errorf("something was done: %+v, before %+v", after, before)
		}
		if _, err := p.ioctl(uapi.ObjectPD, uapi.MethodPDDestroy, inline(uapi.AttrDestroyPDHandle, 0, uint64(pd))); !errors.Is(err, syscall.EDOM) {
			t.Errorf("a method: %v", err)
		}
		fail = false
		run()
		w.srv.OnVerb(nil)
		calls = nil
		p.allocPD()
		if len(calls) > 0 {
			t.Errorf("%q are still heard of", calls)
		}
	}
}
