// Package servicetest runs services in the process of a test.
package servicetest

import (
	"path/filepath"
	"testing"

	"verbena/driver"
	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/service"
)

// Start starts a service with one device, rxe0, at addresses of this host. Start returns the path of the control
// socket, for verbs/service.At and `verbena run --socket`. The service ends with the test.
func Start(t testing.TB, addrs ...string) (socket string) {
	t.Helper()
	_, loc := New(t, service.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: addrs}}})
	return loc.Socket
}

// New starts a service at a separate control socket. New's driver is rxe unless opts names others. The service ends
// with the test.
func New(t testing.TB, opts service.Options) (*service.Service, ctl.Location) {
	t.Helper()
	if opts.Drivers == nil {
		opts.Drivers = []driver.Driver{&rxe.Driver{}}
	}
	srv, err := service.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "socket")}
	Serve(t, srv, loc)
	return srv, loc
}

// Device starts a service with one device, rxe0, at an address of this host. The service ends with the test.
func Device(t testing.TB, addr string) (*service.Service, ctl.Location) {
	t.Helper()
	return New(t, service.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{addr}}}})
}

// Serve serves requests to srv at a location. At the end of the test, srv is closed.
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
		l.CloseAndUnlock()
	})
}
