package uverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/quota"
	"verbena/uapi"
	"verbena/umem"
)

// TestQuotaOfEachKind checks the quota of each kind of object. The object must be charged to the user who opened the
// file, rejected beyond the limit with the errno of the kind, and released by its destruction.
func TestQuotaOfEachKind(t *testing.T) {
	w := newFixture(t)
	limits := quota.Limits{}
	for k := range quota.NumKinds {
		limits[k].PerUser = 3
	}
	limits[quota.Descriptors].PerUser = 3 * descriptorsPerPipe
	w.ledger = quota.New(limits)
	p := w.startProgram(byWrite)
	u := p.User()
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	for _, k := range []struct {
		kind    quota.ResourceKind
		each    uint64
		held    int // before the call
		errno   syscall.Errno
		make    func() (uint32, error)
		destroy func(uint32) error
	}{
		{quota.PDs, 1, 1, syscall.ENOMEM,
			func() (uint32, error) {
				r, err := sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{})
				return r.PDHandle, err
			},
			func(h uint32) error { return sendWithoutResponse(p, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: h}) }},
		{quota.CQs, 1, 1, syscall.ENOMEM,
			func() (uint32, error) {
				r, err := sendPlain[uapi.CreateCQResp](p, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 10, CompChannel: -1})
				return r.CQHandle, err
			},
			func(h uint32) error {
				_, err := sendPlain[uapi.DestroyCQResp](p, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: h})
				return err
			}},
		{quota.QPs, 1, 0, syscall.ENOMEM,
			func() (uint32, error) {
				r, err := sendPlain[uapi.CreateQPResp](p, uapi.CmdCreateQP,
					uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTUD})
				return r.QPHandle, err
			},
			func(h uint32) error {
				_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: h})
				return err
			}},
		{quota.AHs, 1, 0, syscall.ENOMEM,
			func() (uint32, error) {
				r, err := sendPlain[uapi.CreateAHResp](p, uapi.CmdCreateAH, uapi.CreateAH{PDHandle: pd,
					Attr: uapi.AHAttr{PortNum: 1}})
				return r.AHHandle, err
			},
			func(h uint32) error { return sendWithoutResponse(p, uapi.CmdDestroyAH, uapi.DestroyAH{AHHandle: h}) }},
		{quota.MWs, 1, 0, syscall.ENOMEM,
			func() (uint32, error) {
				r, err := sendPlain[uapi.AllocMWResp](p, uapi.CmdAllocMW, uapi.AllocMW{PDHandle: pd, MWType: uapi.MWType1})
				return r.MWHandle, err
			},
			func(h uint32) error { return sendWithoutResponse(p, uapi.CmdDeallocMW, uapi.DeallocMW{MWHandle: h}) }},
		{quota.MRs, 1, 0, syscall.ENOMEM,
			func() (uint32, error) {
				addr := (addressOf(p.allocMem(8192)) + 4095) &^ 4095
				r, err := sendPlain[uapi.RegMRResp](p, uapi.CmdRegMR, uapi.RegMR{Start: addr, HCAVA: addr, Length: 4096,
					PDHandle: pd})
				return r.MRHandle, err
			},
			func(h uint32) error { return sendWithoutResponse(p, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: h}) }},
		{quota.Descriptors, descriptorsPerPipe, 1, syscall.EMFILE,
			func() (uint32, error) {
				r, err := sendPlain[uapi.CreateCompChannelResp](p, uapi.CmdCreateCompChannel, uapi.CreateCompChannel{})
				return r.FD, err
			},
			nil},
	} {
		t.Run(k.kind.String(), func(t *testing.T) {
			var made []uint32
			for i := k.held; i < 3; i++ {
				h, err := k.make()
				must(t, err)
				made = append(made, h)
			}
			if got := u.Held(k.kind); got != 3*k.each {
				t.Errorf("Held: got %d, want %d", got, 3*k.each)
			}
			_, err := k.make()
			var refusal *quota.LimitError
			wantErrno(t, "over the limit", err, k.errno)
			if !errors.As(err, &refusal) || refusal.Kind != k.kind {
				t.Errorf("creation over the limit: got %v, want a quota.Error of kind %v", err, k.kind)
			}
			if k.destroy == nil {
				return
			}
			for _, h := range made {
				must(t, k.destroy(h))
			}
			if got := u.Held(k.kind); got != uint64(k.held) {
				t.Errorf("Held at the end: got %d, want %d", got, k.held)
			}
		})
	}
	var files []*File
	for range 2 {
		files = append(files, w.open(byWrite).f)
	}
	if _, err := w.srv.Open("uverbs0", p, &unmappedMemory{}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("open over the limit: got %v, want ENOMEM", err)
	}
	files[0].Close()
	w.open(byWrite)
}

// TestQuotaAfterRandomCommands executes random sequences of commands and removes the device in between. Some commands
// fail in the driver, at the delivery of the response or at a limit. In the end there must be no charges, and no charge
// may have been released twice.
func TestQuotaAfterRandomCommands(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runRandomCommands(t, r) })
	}
}

func runRandomCommands(t *testing.T, r *rand.Rand) {
	core, drv := &ib.Core{}, ibfake.New()
	drv.ChangeQueryResults(func(a *ibfake.QueryResults) { a.GIDs = make([]ib.GIDEntry, 3) })
	dev := ib.NewDevice("rxe0", drv, nil)
	must(t, core.Register(dev))
	srv, err := NewServer(core, ServerOptions{CompVectors: 1})
	must(t, err)
	defer srv.Close()
	limits := quota.Limits{}
	for k := range quota.NumKinds {
		limits[k] = quota.Limit{PerUser: 1 + r.Uint64N(8), Total: 1 + r.Uint64N(12)}
	}
	limits[quota.Contexts] = quota.Limit{}
	limits[quota.Descriptors] = quota.Limit{PerUser: 8}
	ledger := quota.New(limits)
	var programs []*fuzzProgram
	var files []*File
	for uid := range 2 {
		p := &fuzzProgram{space: &flatSpace{fuzzBase, make([]byte, 0x8000)}, acct: umem.NewAccount(nil),
			user: ledger.User(uid)}
		f, err := srv.Open("uverbs0", p, &unmappedMemory{})
		must(t, err)
		programs, files = append(programs, p), append(files, f)
	}
	failing := false // objects that cannot be destroyed remain, so they must not be aborted
	send := func(i int, cmd uapi.Command, body []byte) {
		c := commands[uint32(cmd)]
		body = append(body, make([]byte, 16)...)
		if c.Answers {
			at := uint64(fuzzBase + 0x4000)
			if r.IntN(8) == 0 && !failing {
				at = 8 // this address is not mapped
			}
			putUint64(body, at)
		}
		hdr := uapi.CmdHdr{Command: uint32(cmd), InWords: uint16(2 + len(body)/4), OutWords: 64}
		b := append(uapi.AppendTo(nil, &hdr), body...)
		copy(programs[i].space.mem, b)
		_, _ = files[i].Write(programs[i], fuzzBase, len(b))
	}
	handle := func() uint32 { return 1 + r.Uint32N(12) }
	methods := []ibfake.Method{
		ibfake.AllocPD, ibfake.CreateQP, ibfake.CreateCQ, ibfake.RegMR, ibfake.DestroyQP, ibfake.DestroyCQ, ibfake.DeallocPD,
	}
	removal := r.IntN(400)
	for n := range 300 {
		for _, m := range methods {
			drv.FailMethod(m, nil)
		}
		if n == removal {
			must(t, core.Unregister(dev))
		}
		if failing = r.IntN(10) == 0; failing {
			drv.FailMethod(methods[r.IntN(len(methods))], syscall.EIO)
		}
		i := r.IntN(2)
		switch r.IntN(16) {
		case 0, 1:
			send(i, uapi.CmdGetContext, make([]byte, 8))
		case 2, 3:
			send(i, uapi.CmdAllocPD, make([]byte, 8))
		case 4:
			send(i, uapi.CmdCreateCQ, encode(uapi.CreateCQ{CQE: 5, CompChannel: -1}))
		case 5, 6:
			send(i, uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: handle(), SendCQHandle: handle(), RecvCQHandle: handle(),
				QPType: uapi.QPTRC}))
		case 7:
			send(i, uapi.CmdRegMR, encode(uapi.RegMR{Start: fuzzBase, HCAVA: fuzzBase, Length: 4096, PDHandle: handle()}))
		case 8:
			send(i, uapi.CmdCreateAH, encode(uapi.CreateAH{PDHandle: handle(), Attr: uapi.AHAttr{PortNum: 1}}))
		case 9:
			send(i, uapi.CmdAllocMW, encode(uapi.AllocMW{PDHandle: handle(), MWType: uapi.MWType1}))
		case 10:
			send(i, uapi.CmdCreateCompChannel, make([]byte, 8))
		case 11:
			send(i, uapi.CmdDestroyQP, encode(uapi.DestroyQP{QPHandle: handle()}))
		case 12:
			send(i, uapi.CmdDestroyCQ, encode(uapi.DestroyCQ{CQHandle: handle()}))
		case 13:
			send(i, uapi.CmdDeregMR, encode(uapi.DeregMR{MRHandle: handle()}))
		case 14:
			send(i, uapi.CmdDestroyAH, encode(uapi.DestroyAH{AHHandle: handle()}))
		case 15:
			send(i, uapi.CmdDeallocPD, encode(uapi.DeallocPD{PDHandle: handle()}))
		}
	}
	for _, m := range methods {
		drv.FailMethod(m, nil)
	}
	for i, f := range files {
		f.Close()
		for _, fd := range programs[i].fds {
			unix.Close(fd)
		}
	}
	checkNoCharges(t, ledger)
	if removal >= 300 {
		must(t, core.Unregister(dev))
	}
}
