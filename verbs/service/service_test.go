package service_test

import (
	"net/netip"
	"testing"

	"verbena/driver"
	"verbena/driver/efa"
	"verbena/internal/ctl"
	server "verbena/service"
	"verbena/service/servicetest"
	"verbena/test/suite"
	"verbena/verbs"
	"verbena/verbs/service"
)

// newService returns a service in this process.
func newService(t testing.TB, opts server.Options) *service.Service {
	t.Helper()
	_, loc := servicetest.New(t, opts)
	s, err := service.At(loc.Socket)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestVerbs runs the tests of package verbs on a device of a service.
func TestVerbs(t *testing.T) {
	s := newService(t, server.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.12.1"}}}})
	suite.Run(t, suite.Config{Open: func() (*verbs.Device, error) { return s.Open("") }})
}

// TestSRD runs the tests of SRD on the EFA devices of a service: on one device, and between two.
func TestSRD(t *testing.T) {
	s := newService(t, server.Options{Drivers: []driver.Driver{&efa.Driver{}}, Links: []ctl.LinkSpec{
		{Name: "efa0", Personality: "efa", Addrs: []string{"127.91.12.5"}},
		{Name: "efa1", Personality: "efa", Addrs: []string{"127.91.12.6"}},
	}})
	for _, to := range []string{"efa0", "efa1"} {
		t.Run(to, func(t *testing.T) {
			suite.RunSRD(t, suite.SRDConfig{Open: [2]func() (*verbs.Device, error){
				func() (*verbs.Device, error) { return s.Open("efa0") },
				func() (*verbs.Device, error) { return s.Open(to) },
			}})
		})
	}
}

// TestConnections runs the tests of package cm on a device of a service.
func TestConnections(t *testing.T) {
	const addr = "127.91.12.3"
	s := newService(t, server.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{addr}}}})
	suite.RunCM(t, suite.CMConfig{
		Config:  suite.Config{Open: func() (*verbs.Device, error) { return s.Open("") }},
		Manager: s.ConnectionManager,
		Addr:    netip.MustParseAddr(addr),
	})
}
