package uverbs

import (
	"os"
	"reflect"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/uapi"
	"verbena/umem"
)

func TestResourcesListProgramObjects(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	idle := w.open(byWrite)
	pd := p.allocPD()
	mr := p.regMR(pd)
	cq, other := p.createCQ(p.createChannel(), 0), p.createCQ(-1, 0)
	qp := p.createQP(pd, cq, 0, uapi.QPTUD)
	ah := p.createAH(pd)
	must(t, sendWithoutResponse(p, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: qp.QPHandle, QPState: uapi.QPSErr,
		AttrMask: uapi.QPAttrState}))

	addr := p.f.objects.find(mr.MRHandle).res.(*mrObject).Region().Addr()
	want := ContextInfo{
		Device: "rxe0", File: "uverbs0", PID: os.Getpid(), ProcessName: "test", UID: os.Getuid(), PinnedPages: 1,
		PDs: []pdInfo{{pd, 3}},
		MRs: []mrInfo{{Handle: mr.MRHandle, PD: pd, LKey: mr.LKey, RKey: mr.RKey, IOVA: addr, Length: 4096, Pages: 1}},
		CQs: []cqInfo{{cq, 11, true, 2}, {other, 11, false, 0}},
		QPs: []qpInfo{{Handle: qp.QPHandle, Num: qp.QPN, PD: pd, Type: ib.QPTypeUD, State: ib.QPErr}},
		AHs: []ahInfo{{ah}},
	}
	if got := p.f.info(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := w.srv.Resources(); len(got) != 2 {
		t.Errorf("%d files", len(got))
	}
	if got := idle.f.info(); len(got.PDs) != 0 || got.Zombie {
		t.Errorf("a file without a context: %+v", got)
	}
	must(t, w.core.Unregister(w.handle))
	got := p.f.info()
	if !got.Zombie || len(got.QPs) != 1 || got.PinnedPages != 0 {
		t.Errorf("zombie: %+v", got)
	}
}

// TestRegistrationsShareLimit checks that the limit of the process covers all its registrations together.
func TestRegistrationsShareLimit(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	p.acct = umem.NewAccount(func() uint64 { return 2 * umem.PageSize })
	pd := p.allocPD()
	p.regMR(pd)
	second := p.regMR(pd)
	addr := addressOf(p.allocMem(16))
	reg := func() error {
		_, err := sendPlain[uapi.RegMRResp](p, uapi.CmdRegMR, uapi.RegMR{Start: addr, HCAVA: addr, Length: 1, PDHandle: pd})
		return err
	}
	wantErrno(t, "over the limit", reg(), syscall.ENOMEM)
	must(t, sendWithoutResponse(p, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: second.MRHandle}))
	must(t, reg())
}
