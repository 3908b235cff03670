package suite

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"verbena/verbs"
)

// SRDConfig is the configuration of the tests of SRD.
type SRDConfig struct {
	// Open opens the devices of two programs.
	Open [2]func() (*verbs.Device, error)
	// NetworkAllocates means that the network between the devices allocates memory, as networks in memory do.
	NetworkAllocates bool
}

// RunSRD runs the tests of SRD.
func RunSRD(t *testing.T, c SRDConfig) {
	for _, x := range []struct {
		name string
		f    func(a, b *srdEnd)
	}{
		{"Operations", testSRDOperations}, {"Overtakes", testSRDOvertakes}, {"Failures", testSRDFailures},
		{"Rounds", testSRDRounds}, {"Reset", testSRDReset}, {"Refused", testSRDRefused}, {"Channel", testSRDChannel},
		{"Allocations", testSRDAllocations},
	} {
		if x.name == "Allocations" && (c.NetworkAllocates || raceEnabled()) {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			var ends [2]*srdEnd
			for i := range ends {
				d, err := c.Open[i]()
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				}()
				ends[i] = newSRDEnd(&Testbed{T: t, Device: d})
			}
			for i, e := range ends {
				e.peer(ends[1-i])
			}
			x.f(ends[0], ends[1])
		})
	}
}

// srdEnd is a queue pair of SRD with an address handle of another one.
type srdEnd struct {
	*End
	To verbs.Datagram
}

func newSRDEnd(w *Testbed) *srdEnd {
	e := &srdEnd{End: w.NewEnd(verbs.QPInit{Type: verbs.SRD, Inline: 32, RecvSGEs: 2, SendSGEs: 2})}
	w.Must(e.QP.Activate(verbs.Path{}))
	return e
}

// peer makes the address handle of another end.
func (e *srdEnd) peer(p *srdEnd) {
	e.Helper()
	at, err := p.QP.Local()
	e.Must(err)
	ah, err := e.PD.CreateAH(verbs.AHAttr{GID: at.GID})
	e.Must(err)
	e.To = verbs.Datagram{AH: ah, QPN: at.QPN, QKey: at.QKey}
}

// post posts a signaled request of n bytes from an offset.
func (e *srdEnd) post(id uint64, op verbs.Opcode, off, n int, remote verbs.Remote) {
	e.Helper()
	e.Must(e.QP.PostSend(&verbs.SendWR{ID: id, Opcode: op, Flags: verbs.Signaled, Local: e.MR.SGE(off, n), Remote: remote,
		Imm: 0x01020304, To: e.To}))
}

func (e *srdEnd) recv(id uint64, off, n int) {
	e.Helper()
	e.Must(e.QP.PostRecv(&verbs.RecvWR{ID: id, Local: e.MR.SGE(off, n)}))
}

// want waits for the completion of a request, with a status.
func (e *srdEnd) want(id uint64, status verbs.Status) verbs.WC {
	e.Helper()
	wc := e.WaitCompletion()
	if wc.ID != id || wc.Status != status || wc.QPN != e.QP.Num() {
		e.Fatalf("completion: got %+v, want request %d with %v", wc, id, status)
	}
	return wc
}

func testSRDOperations(a, b *srdEnd) {
	const far = 512 << 10
	for i, op := range []verbs.Opcode{verbs.Send, verbs.SendWithImm, verbs.Write, verbs.WriteWithImm, verbs.Read} {
		for _, n := range []int{0, 1, 1000, 200_000} {
			send := op == verbs.Send || op == verbs.SendWithImm
			if send && n > 1000 {
				continue
			}
			for k := range n {
				a.MR.Bytes()[k], b.MR.Bytes()[far+k] = byte(k+i), byte(k*3+i)
			}
			from, to := a.MR.Bytes()[:n], b.MR.Bytes()[far:][:n]
			if op == verbs.Read {
				from, to = to, from
			}
			want := bytes.Clone(from)
			if send || op == verbs.WriteWithImm {
				b.recv(7, far, 4096)
			}
			a.post(uint64(1<<40+i), op, 0, n, b.MR.Remote(far))
			opcode := verbs.WCSend
			switch op {
			case verbs.Write, verbs.WriteWithImm:
				opcode = verbs.WCWrite
			case verbs.Read:
				opcode = verbs.WCRead
			}
			if wc := a.want(uint64(1<<40+i), verbs.Success); wc.Opcode != opcode {
				a.Errorf("%v of %d bytes: got opcode %v, want %v", op, n, wc.Opcode, opcode)
			}
			if send || op == verbs.WriteWithImm {
				imm := op != verbs.Send
				wc := b.want(7, verbs.Success)
				if int(wc.ByteLen) != n || wc.SrcQPN != a.QP.Num() || (wc.Flags&verbs.WithImm != 0) != imm ||
					imm && wc.Imm != 0x01020304 || (wc.Opcode == verbs.WCReceive) != send || wc.Flags&verbs.WithGRH != 0 {
					a.Errorf("%v of %d bytes: receive: got %+v", op, n, wc)
				}
			}
			if !bytes.Equal(to, want) {
				a.Errorf("%v of %d bytes: got other data than were sent", op, n)
			}
		}
	}
	// Two elements, and inline data.
	b.recv(8, 0, 100)
	copy(a.MR.Bytes(), "twoparts")
	a.Must(a.QP.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.Send, Flags: verbs.Signaled, To: a.To,
		List: []verbs.SGE{a.MR.SGE(3, 5), a.MR.SGE(0, 3)}}))
	a.want(1, verbs.Success)
	if n := b.want(8, verbs.Success).ByteLen; string(b.MR.Bytes()[:n]) != "partstwo" {
		a.Errorf("two elements: got %q, want partstwo", b.MR.Bytes()[:n])
	}
	b.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 9, List: []verbs.SGE{b.MR.SGE(0, 3), b.MR.SGE(100, 50)}}))
	a.Must(a.QP.PostSend(&verbs.SendWR{ID: 2, Opcode: verbs.Send, Inline: []byte("inline"), To: a.To})) // not signaled
	n := b.want(9, verbs.Success).ByteLen
	if m := b.MR.Bytes(); n != 6 || string(m[:3])+string(m[100:103]) != "inline" {
		a.Errorf("inline data: got %d bytes, want them in both elements", n)
	}
	a.post(3, verbs.Read, 0, 8, b.MR.Remote(0))
	a.want(3, verbs.Success)
}

// testSRDOvertakes posts a SEND behind a long WRITE. The SEND arrives first.
func testSRDOvertakes(a, b *srdEnd) {
	b.recv(1, 0, 8)
	n, err := a.QP.PostSends([]verbs.SendWR{
		{ID: 1, Opcode: verbs.Write, Flags: verbs.Signaled, Local: a.MR.SGE(0, 900<<10), Remote: b.MR.Remote(4096),
			To: a.To},
		{ID: 2, Opcode: verbs.Send, Flags: verbs.Signaled, Local: a.MR.SGE(0, 8), To: a.To},
	})
	if n != 2 {
		a.Fatalf("PostSends: got %d and error %v, want 2", n, err)
	}
	b.want(1, verbs.Success)
	a.want(2, verbs.Success)
	a.want(1, verbs.Success)
}

func testSRDFailures(a, b *srdEnd) {
	wrong := b.MR.Remote(0)
	wrong.RKey ^= 0x10
	a.post(1, verbs.Write, 0, 100, wrong)
	if wc := a.want(1, verbs.RemoteAccessError); wc.VendorErr != 7 {
		a.Errorf("wrong key: got vendor error %d, want 7", wc.VendorErr)
	}
	b.recv(1, 0, 4)
	a.post(2, verbs.Send, 0, 5, verbs.Remote{})
	a.want(2, verbs.RemoteInvalid)
	a.post(3, verbs.Send, 0, 4, verbs.Remote{})
	a.want(3, verbs.Success)
	b.want(1, verbs.Success)
	b.Must(b.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
	a.post(4, verbs.Send, 0, 4, verbs.Remote{})
	if wc := a.WaitCompletion(); wc.ID != 4 || wc.Status == verbs.Success {
		a.Errorf("SEND to a queue pair in ERR: got %+v, want an error", wc)
	}
	a.recv(5, 0, 4)
	a.Must(a.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
	a.want(5, verbs.Flushed)
}

// testSRDRounds goes through the queues several times, with many requests in flight.
func testSRDRounds(a, b *srdEnd) {
	r := rand.New(rand.NewPCG(1, 2))
	ends := [2]*srdEnd{a, b}
	const size = 64
	var received, sent [2]map[uint64]bool
	for i := range ends {
		received[i], sent[i] = map[uint64]bool{}, map[uint64]bool{}
	}
	for round := range 100 {
		n := 1 + r.IntN(30)
		for i := range n {
			for k, e := range ends {
				id := uint64(round*100 + i)
				e.recv(1<<32|id, 1<<16+i*size, size)
				copy(e.MR.Bytes()[i*size:][:size], fmt.Sprintf("message %d of %d", id, k))
			}
		}
		for i := range n {
			for _, e := range ends {
				e.post(uint64(round*100+i), verbs.Send, i*size, size, verbs.Remote{})
			}
		}
		for k, e := range ends {
			texts := map[string]bool{}
			for range 2 * n {
				wc := e.WaitCompletion()
				into := sent[k]
				if wc.Opcode == verbs.WCReceive {
					into = received[k]
					text, _, _ := bytes.Cut(e.MR.Bytes()[1<<16+int(wc.ID&(1<<32-1))%100*size:][:size], []byte{0})
					texts[string(text)] = true
				}
				if wc.Status != verbs.Success || into[wc.ID] {
					e.Fatalf("round %d: got %+v, want success once", round, wc)
				}
				into[wc.ID] = true
			}
			for i := range n {
				if want := fmt.Sprintf("message %d of %d", round*100+i, 1-k); !texts[want] {
					e.Fatalf("round %d: got messages %v, want also %q", round, texts, want)
				}
			}
		}
	}
	for i := range 200 {
		if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled, To: a.To}); err != nil {
			if err != verbs.ErrQueueFull || i < 64 {
				a.Errorf("post %d: got %v, want the error of a full queue after at least 64", i, err)
			}
			return
		}
	}
	a.Error("200 posts without receives: got success, want a full queue")
}

// testSRDReset moves queue pairs with requests in flight to RESET and back.
func testSRDReset(a, b *srdEnd) {
	for i := range 20 {
		for k := range 10 {
			a.recv(uint64(100+k), 0, 100)
			a.post(uint64(k), verbs.Send, 0, 8, verbs.Remote{}) // no receive
		}
		a.Must(a.QP.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
		a.Must(a.QP.Activate(verbs.Path{}))
		a.post(uint64(1000+i), verbs.Write, 0, 100, b.MR.Remote(0))
		a.want(uint64(1000+i), verbs.Success)
	}
}

func testSRDRefused(a, b *srdEnd) {
	for name, wr := range map[string]verbs.SendWR{
		"atomic":             {Opcode: verbs.FetchAdd, Local: a.MR.SGE(0, 8), Remote: b.MR.Remote(0), To: a.To},
		"without a peer":     {Opcode: verbs.Send, Local: a.MR.SGE(0, 8)},
		"two elements":       {Opcode: verbs.Write, List: []verbs.SGE{a.MR.SGE(0, 8), a.MR.SGE(8, 8)}, To: a.To},
		"inline WRITE":       {Opcode: verbs.Write, Inline: []byte("12345678"), To: a.To},
		"33 bytes of inline": {Opcode: verbs.Send, Inline: make([]byte, 33), To: a.To},
	} {
		if err := a.QP.PostSend(&wr); err == nil {
			a.Errorf("%s: got success, want an error", name)
		}
	}
	if err := a.QP.Connect(verbs.Endpoint{}); err == nil {
		a.Error("Connect: got success, want an error")
	}
	if _, err := a.PD.CreateSRQ(1, 1); err == nil {
		a.Error("CreateSRQ: got success, want an error")
	}
	if _, err := a.PD.CreateQP(verbs.QPInit{SendCQ: a.CQ}); err == nil {
		a.Error("CreateQP of type RC: got success, want an error")
	}
	if err := a.CQ.Resize(10); err == nil {
		a.Error("Resize: got success, want an error")
	}
}

// testSRDChannel waits for completions on the channel.
func testSRDChannel(a, b *srdEnd) {
	var wc [1]verbs.WC
	for i := range uint64(20) {
		b.recv(i, 0, 100)
		got := make(chan error, 1)
		go func() {
			_, err := b.CQ.Wait(b.ShortContext(), wc[:])
			got <- err
		}()
		if i%2 == 0 {
			time.Sleep(2 * time.Millisecond)
		}
		a.post(i, verbs.Send, 0, 10, verbs.Remote{})
		a.Must(<-got)
		if wc[0].ID != i || wc[0].Status != verbs.Success {
			a.Fatalf("receive: got %+v, want %d with success", wc[0], i)
		}
		a.want(i, verbs.Success)
	}
}

// raceEnabled reports whether the race detector is enabled. It makes pools allocate.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func testSRDAllocations(a, b *srdEnd) {
	wr := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: a.MR.SGE(0, 64), Remote: b.MR.Remote(0),
		To: a.To}
	var wc [1]verbs.WC
	n := testing.AllocsPerRun(200, func() {
		if err := a.QP.PostSend(&wr); err != nil {
			a.Fatal(err)
		}
		for k := 0; k == 0; {
			k, _ = a.CQ.Poll(wc[:])
		}
	})
	if n >= 1 {
		a.Errorf("post and poll: got %v allocations, want none", n)
	}
}
