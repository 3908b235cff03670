package service

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/internal/ctl"
)

// TestInvalidQPTraceIsRefused tests that the error of an invalid request names the cause, and that a device without
// queue pairs has an empty list.
func TestInvalidQPTraceIsRefused(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.9"}})
	r, err := c.Do(&ctl.Request{Op: ctl.OpQPShow})
	if err != nil || len(r.QPs) != 0 {
		t.Errorf("qp show without a queue pair: got %+v and error %v, want an empty list", r, err)
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpQPTrace}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("empty qp trace request: got %v, want EINVAL", err)
	}
	trace := func(q ctl.QPTrace) error {
		_, err := c.Do(&ctl.Request{Op: ctl.OpQPTrace, Trace: &q})
		return err
	}
	for _, x := range []struct {
		what string
		q    ctl.QPTrace
		want syscall.Errno
		says string
	}{
		{"no such queue pair", ctl.QPTrace{Num: 77}, syscall.ENOENT, "QP 77 on rxe0"},
		{"no such device", ctl.QPTrace{Dev: "rxe5", Num: 77}, syscall.ENODEV, "rxe5"},
		{"no such number", ctl.QPTrace{Num: 1<<32 - 1}, syscall.ENOENT, "no such queue pair"},
	} {
		if err := trace(x.q); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: got %v, want %v and %q", x.what, err, x.want, x.says)
		}
	}
	if err := s.links.createLink(ctl.LinkSpec{Name: "rxe1", Addrs: []string{"127.91.8.10"}}); err != nil {
		t.Fatal(err)
	}
	if err := trace(ctl.QPTrace{Num: 77}); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "--dev") {
		t.Errorf("qp trace without a name of one of two devices: got %v, want EINVAL", err)
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpDevUnplug, Name: "rxe0"}); err != nil {
		t.Fatal(err)
	}
	if err := trace(ctl.QPTrace{Dev: "rxe0", Num: 77}); err == nil {
		t.Error("qp trace of an unplugged device: got success, want an error")
	}
	defer func() {
		if err := errors.Join(s.links.deleteLink("rxe0"), s.links.deleteLink("rxe1")); err != nil {
			t.Fatal(err)
		}
		err := trace(ctl.QPTrace{Num: 77})
		if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "no device") {
			t.Errorf("qp trace without a device: got %v, want ENODEV", err)
		}
	}()
	if _, err := c.Do(&ctl.Request{Op: ctl.OpQPShow}); err != nil {
		t.Errorf("qp show with another device unplugged: got %v, want success", err)
	}
}
