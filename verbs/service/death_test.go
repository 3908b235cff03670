package service_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"verbena/driver"
	"verbena/driver/efa"
	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/internal/leaktest"
	"verbena/internal/testutil"
	server "verbena/service"
	"verbena/verbs"
	"verbena/verbs/service"
)

// serviceSocketEnv is an environment variable. The variable makes the test binary run as a service at the socket that
// the variable names.
const serviceSocketEnv = "VERBENA_TEST_SERVICE"

func TestMain(m *testing.M) {
	if socket := os.Getenv(serviceSocketEnv); socket != "" {
		serveUntilKilled(socket)
	}
	leaktest.Main(m)
}

func serveUntilKilled(socket string) {
	srv, err := server.New(server.Options{Drivers: []driver.Driver{&rxe.Driver{}, &efa.Driver{}},
		Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.13.6"}},
			{Name: "efa0", Personality: "efa", Addrs: []string{"127.91.13.7"}}}})
	if err == nil {
		var l *server.Listener
		if l, err = server.Listen(ctl.Location{Socket: socket}, nil); err == nil {
			err = srv.Serve(l)
		}
	}
	os.Stderr.WriteString(err.Error())
	os.Exit(1)
}

// startService starts a service in its own process. kill kills this process.
func startService(t *testing.T) (s *service.Service, kill func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serviceSocketEnv+"="+socket)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := ctl.Await(ctx, ctl.Location{Socket: socket})
	must(t, err)
	c.Close()
	s, err = service.At(socket)
	must(t, err)
	return s, kill
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestKilledServiceEndsWaits kills the service. Waits must return, outstanding requests must be flushed, and calls must
// fail.
func TestKilledServiceEndsWaits(t *testing.T) {
	s, kill := startService(t)
	x, y := newTestEnd(t, s, 4096), newTestEnd(t, s, 4096)
	x.connectTo(y)
	x.postRecvs(3)
	d, err := s.Open("rxe0")
	must(t, err)
	defer d.Close()
	ch, err := d.CreateChannel()
	must(t, err)
	own, err := d.CreateCQ(16, nil)
	must(t, err)
	m, err := s.ConnectionManager()
	must(t, err)
	defer m.Close()

	waits := map[string]func() error{
		"Channel.Wait": func() error { _, err := ch.Wait(t.Context()); return err },
		"CQ.Wait":      func() error { _, err := own.Wait(t.Context(), make([]verbs.WC, 1)); return err },
		"NextEvent":    func() error { _, err := d.NextEvent(t.Context()); return err },
	}
	type end struct {
		what string
		err  error
	}
	ends := make(chan end, len(waits))
	var waiting []func()
	for what, wait := range waits {
		waiting = append(waiting, func() { ends <- end{what, wait()} })
	}
	testutil.WaitBlocked(t, waiting...)
	stop := make(chan struct{})
	calls, called := make(chan error, 1), make(chan struct{})
	go func() { // calls in progress
		for i := 0; ; i++ {
			if i == 100 {
				close(called)
			}
			select {
			case <-stop:
				calls <- nil
				return
			default:
			}
			if _, err := d.AllocPD(); err != nil {
				calls <- err
				return
			}
		}
	}()
	<-called
	kill()
	timeout := time.After(10 * time.Second)
	for range waits {
		select {
		case e := <-ends:
			if !errors.Is(e.err, io.EOF) && !errors.Is(e.err, syscall.EIO) {
				t.Errorf("%s: got %v, want io.EOF or EIO", e.what, e.err)
			}
		case <-timeout:
			t.Fatal("a call still waits")
		}
	}
	close(stop)
	select {
	case err := <-calls:
		if err != nil && !errors.Is(err, syscall.EIO) {
			t.Errorf("AllocPD: %v, want EIO", err)
		}
	case <-timeout:
		t.Fatal("AllocPD hangs")
	}
	flushed := 0
	for deadline := time.Now().Add(10 * time.Second); flushed < 3 && time.Now().Before(deadline); {
		n, err := x.cq.Poll(x.wc)
		must(t, err)
		for i := range n {
			if x.wc[i].Status != verbs.Flushed {
				t.Errorf("completion: got %+v, want a flush error", x.wc[i])
			}
		}
		flushed += n
	}
	if flushed != 3 {
		t.Errorf("flushed receives: got %d, want 3", flushed)
	}
	if err := x.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send}); !errors.Is(err, syscall.EIO) {
		t.Errorf("PostSend: %v, want EIO", err)
	}
}

// TestKilledServiceFlushesSRD kills the service. Requests of SRD in flight, and receives, must be flushed.
func TestKilledServiceFlushesSRD(t *testing.T) {
	s, kill := startService(t)
	d, err := s.Open("efa0")
	must(t, err)
	defer d.Close()
	pd, err := d.AllocPD()
	must(t, err)
	mr, err := pd.Alloc(4096, verbs.LocalWrite)
	must(t, err)
	cq, err := d.CreateCQ(16, nil)
	must(t, err)
	var qps [2]*verbs.QP
	for i := range qps {
		qps[i], err = pd.CreateQP(verbs.QPInit{Type: verbs.SRD, SendCQ: cq, RecvCQ: cq, SendWRs: 4, RecvWRs: 4})
		must(t, err)
		must(t, qps[i].Activate(verbs.Path{}))
	}
	peer, err := qps[1].Local()
	must(t, err)
	ah, err := pd.CreateAH(verbs.AHAttr{GID: peer.GID})
	must(t, err)
	want := map[uint64]bool{}
	for id := range uint64(3) { // the peer has no receives
		must(t, qps[0].PostSend(&verbs.SendWR{ID: id, Opcode: verbs.Send, Flags: verbs.Signaled, Local: mr.SGE(0, 8),
			To: verbs.Datagram{AH: ah, QPN: peer.QPN, QKey: peer.QKey}}))
		must(t, qps[0].PostRecv(&verbs.RecvWR{ID: 10 + id, Local: mr.SGE(0, 8)}))
		want[id], want[10+id] = true, true
	}
	kill()
	wc := make([]verbs.WC, 16)
	for deadline := time.Now().Add(10 * time.Second); len(want) > 0 && time.Now().Before(deadline); {
		n, err := cq.Poll(wc)
		must(t, err)
		for i := range n {
			if wc[i].Status != verbs.Flushed || !want[wc[i].ID] {
				t.Errorf("completion: got %+v, want a flush error, once", wc[i])
			}
			delete(want, wc[i].ID)
		}
	}
	if len(want) > 0 {
		t.Errorf("requests %v: got no completion, want a flush error", want)
	}
}
