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
	"verbena/uapi/verb"
)

// TestVerbTable checks the table of verbs. Every command and method must have a function, and every function must have
// a row. No call may be in two rows, and no name may belong to two verbs.
func TestVerbTable(t *testing.T) {
	runs := methodHandlers()
	rows, names, calls := 0, map[string]bool{}, map[string]bool{}
	once := func(set map[string]bool, name string) {
		if set[name] {
			t.Errorf("table: got %s twice, want it once", name)
		}
		set[name] = true
	}
	for _, v := range verb.Table {
		for _, name := range append([]string{v.Name}, v.Aliases...) {
			if name != "" {
				once(names, name)
			}
		}
		for _, c := range v.Commands {
			once(calls, c.String())
			if commands[c.Number].run == nil {
				t.Errorf("function of %v: got none, want one", c)
			}
			if v.Name == "" && !v.Atomic {
				t.Errorf("name of %v, which is not a data-path call: got none, want one", c)
			}
		}
		for _, m := range v.Methods {
			once(calls, fmt.Sprint(m.Object, m))
			if runs[methodID{m.Object, m.Method}] == nil {
				t.Errorf("function of %v: got none, want one", m)
			}
		}
		rows += len(v.Commands) + len(v.Methods)
	}
	if rows != len(plainHandlers)+len(extendedHandlers)+len(runs) || rows != len(commands)+len(methods) {
		t.Errorf("table: got %d calls for %d functions, want equal numbers", rows,
			len(plainHandlers)+len(extendedHandlers)+len(runs))
	}
	for _, want := range [][2]string{{"create_cq_ex", "create_cq"}, {"reg_mr", "reg_mr"}} {
		if v, ok := CanonicalVerb(want[0]); !ok || v != want[1] {
			t.Errorf("%s is %q, %v", want[0], v, ok)
		}
	}
	if v, ok := CanonicalVerb(""); ok {
		t.Errorf("CanonicalVerb of the empty name: got %q, want none", v)
	}
}

// TestInjectedVerbErrorHasNoEffect checks that an injected error is returned in either form before the verb has any
// effect. Other verbs must be executed.
func TestInjectedVerbErrorHasNoEffect(t *testing.T) {
	for _, form := range []commandForm{byWrite, byIoctl} {
		w := newFixture(t)
		p := w.startProgram(form)
		pd := p.allocPD()
		cq := p.createCQ(-1, 1)
		qp := p.createQP(pd, cq, 2, uapi.QPTRC).QPHandle
		must(t, sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq})) // the fast path
		var calls []string
		fail := true
		w.srv.OnVerb(func(c VerbCall) error {
			calls = append(calls, strings.TrimSuffix(c.Verb+":"+c.State, ":"))
			if c.Device != "rxe0" || c.PID != os.Getpid() || c.Process != "test" {
				t.Errorf("call: got %+v, want rxe0 and this process", c)
			}
			if fail {
				return fmt.Errorf("not now: %w", syscall.EDOM)
			}
			return nil
		})
		before := p.f.info()
		run := func() {
			t.Helper()
			calls = nil
			for i, err := range []error{
				func() error { _, err := sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{}); return err }(),
				sendWithoutResponse(p, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSErr,
					AttrMask: uapi.QPAttrState}),
				func() error {
					_, _, err := sendExtended[uapi.ExModifyQPResp](p, uapi.ExCmdModifyQP,
						uapi.ExModifyQP{Base: uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSReset, AttrMask: uapi.QPAttrState}}, 0)
					return err
				}(),
				sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq}),
				func() error {
					_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
					return err
				}(),
			} {
				if fail != errors.Is(err, syscall.EDOM) || !fail && err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
			if want := []string{"alloc_pd", "modify_qp:err", "modify_qp:reset", "req_notify_cq",
				"destroy_qp"}; !slices.Equal(calls, want) {
				t.Errorf("observed calls: got %q, want %q", calls, want)
			}
		}
		run()
		if after := p.f.info(); !reflect.DeepEqual(after, before) {
			t.Errorf("objects after failed calls: got %+v, want %+v", after, before)
		}
		if _, err := p.callMethod(uapi.ObjectPD, uapi.MethodPDDestroy,
			inlineAttr(uapi.AttrDestroyPDHandle, 0, uint64(pd))); !errors.Is(err, syscall.EDOM) {
			t.Errorf("a method: %v", err)
		}
		fail = false
		run()
		w.srv.OnVerb(nil)
		calls = nil
		p.allocPD()
		if len(calls) > 0 {
			t.Errorf("observed calls: got %q, want none", calls)
		}
	}
}
