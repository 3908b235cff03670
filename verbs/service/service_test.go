package service_test

import (
	"net/netip"
	"path/filepath"
	"testing"

	"verbena/internal/ctl"
	server "verbena/service"
	"verbena/verbs"
	"verbena/verbs/internal/suite"
	"verbena/verbs/service"
)

// newService is a service in this process with devices, one for each address.
func newService(t testing.TB, opts server.Options) *service.Service {
	t.Helper()
	srv, err := server.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "socket")}
	l, err := server.Listen(loc, nil)
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
	s, err := service.At(loc.Socket)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestVerbs: package verbs on a device of a service.
func TestVerbs(t *testing.T) {
	s := newService(t, server.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.12.1"}}}})
	suite.Run(t, suite.Config{Open: func() (*verbs.Device, error) { return s.Open("") }})
}

// TestConnections: package cm on a device of a service.
func TestConnections(t *testing.T) {
	const addr = "127.91.12.3"
	s := newService(t, server.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{addr}}}})
	suite.RunCM(t, suite.CMConfig{
		Config:  suite.Config{Open: func() (*verbs.Device, error) { return s.Open("") }},
		Manager: s.ConnectionManager,
		Addr:    netip.MustParseAddr(addr),
	})
}
