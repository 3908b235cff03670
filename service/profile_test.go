package service

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
)

// TestProfileOfEachKind tests that profiles of each kind are available over the control socket, one at a time, with
// limited duration and size.
func TestProfileOfEachKind(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.32"}})
	gzip, goTrace := []byte{0x1f, 0x8b}, []byte("go 1.")
	for _, ok := range []struct {
		p      ctl.Profile
		begins []byte
	}{
		{ctl.Profile{Kind: ctl.ProfileHeap}, gzip}, {ctl.Profile{Kind: ctl.ProfileGoroutines}, gzip},
		{ctl.Profile{Kind: ctl.ProfileCPU, Duration: 10 * time.Millisecond},
			gzip}, {ctl.Profile{Kind: ctl.ProfileTrace, Duration: time.Millisecond}, goTrace},
	} {
		r, err := c.Do(&ctl.Request{Op: ctl.OpProfile, Profile: &ok.p})
		if err != nil || !bytes.HasPrefix(r.Profile, ok.begins) {
			t.Errorf("profile %+v: got %d bytes and error %v, want a profile", ok.p, len(r.Profile), err)
		}
	}
	for _, bad := range []ctl.Profile{{Kind: "x"}, {Kind: ctl.ProfileHeap, Duration: 1}, {Kind: ctl.ProfileCPU},
		{Kind: ctl.ProfileTrace, Duration: -1},
		{Kind: ctl.ProfileCPU, Duration: ctl.MaxProfileTime + 1}} {
		if _, err := c.Do(&ctl.Request{Op: ctl.OpProfile, Profile: &bad}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("profile %+v: got %v, want EINVAL", bad, err)
		}
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpProfile}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("request without a profile: got %v, want EINVAL", err)
	}
	profileMu.Lock()
	_, err := c.Do(&ctl.Request{Op: ctl.OpProfile, Profile: &ctl.Profile{Kind: ctl.ProfileHeap}})
	profileMu.Unlock()
	if !errors.Is(err, syscall.EBUSY) {
		t.Errorf("second profile at the same time: got %v, want EBUSY", err)
	}
	whole := maxProfileSize
	maxProfileSize = 10
	_, err = c.Do(&ctl.Request{Op: ctl.OpProfile, Profile: &ctl.Profile{Kind: ctl.ProfileHeap}})
	maxProfileSize = whole
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("profile above the size limit: got %v, want EFBIG", err)
	}
	// The end of the service ends a profile early.
	s.Stop()
	done := make(chan error, 1)
	go func() {
		_, err := collectProfile(s.ended, ctl.Profile{Kind: ctl.ProfileCPU, Duration: ctl.MaxProfileTime})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("profile of a service that ends: got %v, want success", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("end of the service during a profile: got a delay, want none")
	}
}

// TestProfileIsForManagers tests that only managers get profiles, since a profile shows data of all users.
func TestProfileIsForManagers(t *testing.T) {
	if err := (userPeer(4242)).authorize(ctl.OpProfile); !errors.Is(err, syscall.EPERM) {
		t.Errorf("profile for a user: got %v, want EPERM", err)
	}
	if err := (managerPeer()).authorize(ctl.OpProfile); err != nil {
		t.Errorf("profile for root: got %v, want success", err)
	}
}

// TestBoundedBufferRefusesExcess tests that boundedBuffer refuses data beyond its limit and does not keep it.
func TestBoundedBufferRefusesExcess(t *testing.T) {
	b := boundedBuffer{most: 10}
	if n, err := b.Write(make([]byte, 6)); n != 6 || err != nil || b.isFull() {
		t.Errorf("write of 6 bytes: got %d and error %v, want 6", n, err)
	}
	if _, err := b.Write(make([]byte, 5)); err == nil || !b.isFull() || b.b.Len() != 6 {
		t.Errorf("write of 5 more bytes of 10: got error %v and %d bytes kept, want an error and 6", err, b.b.Len())
	}
}
