// Package servicetest runs services in the process of a test.
package servicetest

import (
	"path/filepath"
	"testing"

	"verbena/internal/ctl"
	"verbena/service"
)

// New starts a service at a control socket of its own. It ends with the test.
func New(t testing.TB, opts service.Options) (*service.Service, ctl.Location) {
	t.Helper()
	srv, err := service.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "socket")}
	Serve(t, srv, loc)
	return srv, loc
}

// Device starts a service with one device, rxe0, at an address of this host.
func Device(t testing.TB, addr string) (*service.Service, ctl.Location) {
	t.Helper()
	return New(t, service.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{addr}}}})
}

// Serve makes a service answer at a location until the test ends, and the service with it.
func Serve(t testing.TB, srv *service.Service, loc ctl.Location) {
	t.Helper()
	l, err := service.Listen(loc, nil)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		l.Release()
	})
}
