package service_test

import (
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/ctl/devfile"
	server "verbena/service"
	"verbena/uapi"
	"verbena/verbs/service"
)

// faultyReplies describes the replies of a faulty service. The first reply has files descriptors, and each further
// request receives random data. After most bytes in total, the service closes the connection.
type faultyReplies struct {
	files   int
	most    int
	garbage bool
}

// newFaultyService returns a service that listens and sends faulty replies.
func newFaultyService(t *testing.T, how *atomic.Pointer[faultyReplies]) *service.Service {
	t.Helper()
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "socket")}
	l, err := server.Listen(loc, nil)
	must(t, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			sendFaultyReplies(ctl.Conn{UnixConn: c}, *how.Load())
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-over
		l.CloseAndUnlock()
	})
	s, err := service.At(loc.Socket)
	must(t, err)
	return s
}

func sendFaultyReplies(c ctl.Conn, how faultyReplies) {
	defer c.Close()
	var r ctl.Request
	if _, err := c.Receive(&r, ctl.MessageLimits{Size: ctl.MaxRequest}); err != nil {
		return
	}
	if r.Op == ctl.OpDevShow {
		_ = c.Send(&ctl.Response{Devs: []ctl.DevInfo{{Name: "rxe0", Driver: uint32(uapi.DriverRXE), ABI: 2}}}, nil)
		return
	}
	_ = c.Send(&ctl.Response{Opened: &ctl.OpenResult{Device: "rxe0", Driver: uint32(uapi.DriverRXE), ABI: 2}}, nil)
	var fds []int
	for range how.files {
		fd, err := unix.MemfdCreate("broken", unix.MFD_CLOEXEC)
		if err != nil {
			return
		}
		_ = unix.Ftruncate(fd, 1<<20)
		fds = append(fds, fd)
	}
	defer devfile.CloseAll(fds)
	left := how.most
	cut := func(b []byte) []byte {
		b = b[:min(len(b), left)]
		left -= len(b)
		return b
	}
	first := cut(make([]byte, 24))
	if len(first) == 0 {
		return
	}
	if _, _, err := c.WriteMsgUnix(first, unix.UnixRights(fds...), nil); err != nil {
		return
	}
	d := devfile.Conn{UnixConn: c.UnixConn}
	for left > 0 {
		if _, fds, err := d.ReceiveRequest(0); err != nil {
			devfile.CloseAll(fds)
			return
		}
		b := make([]byte, 24)
		if how.garbage {
			for i := range b {
				b[i] = byte(rand.Uint32())
			}
			if copy(b[4:8], []byte{0, 0, 0, 0}); rand.IntN(2) > 0 {
				b[7] = 0xff // an invalid length; with a valid one the client would wait for missing data
			}
		}
		if _, err := c.Write(cut(b)); err != nil {
			return
		}
	}
}

// TestFaultyServiceFailsCall checks a service that sends random data, or closes the connection within a reply. The call
// must fail at once and leave no resources.
func TestFaultyServiceFailsCall(t *testing.T) {
	var now atomic.Pointer[faultyReplies]
	s := newFaultyService(t, &now)
	var all []faultyReplies
	for files := range devfile.Opened + 2 {
		all = append(all, faultyReplies{files: files, most: 24}, faultyReplies{files: files, most: 1 << 20, garbage: true})
	}
	for most := range 24*4 + 1 {
		all = append(all, faultyReplies{files: devfile.Opened, most: most},
			faultyReplies{files: devfile.Opened, most: most, garbage: true})
	}
	for _, how := range all {
		now.Store(&how)
		done := make(chan error, 1)
		go func() {
			d, err := s.Open("rxe0")
			if err == nil {
				_, err = d.AllocPD()
				d.Close()
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%+v: got nil, want an error", how)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%+v: got no return within 10 s, want one", how)
		}
	}
}
