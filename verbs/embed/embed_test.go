package embed_test

import (
	"net/netip"
	"testing"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/internal/leaktest"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/test/suite"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/embed"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newStack returns a stack with one device on a network in this process.
func newStack(t *testing.T) (*embed.Stack, *rxe.Device) {
	t.Helper()
	dev, err := rxe.New(rxe.Config{
		Name: "rxe0", Netdev: netdev.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true},
		Addrs:   []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Network: simnet.New(simnet.Config{}), Fabric: &rxe.Fabric{},
	})
	if err != nil {
		t.Fatal(err)
	}
	var core ib.Core
	if err := core.Register(dev.Handle()); err != nil {
		t.Fatal(err)
	}
	s, err := embed.New(&core)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := core.Unregister(dev.Handle()); err != nil {
			t.Error(err)
		}
		dev.Close()
	})
	return s, dev
}

// TestVerbs runs the tests of package verbs on a device in this process.
func TestVerbs(t *testing.T) {
	s, _ := newStack(t)
	suite.Run(t, suite.Config{Open: func() (*verbs.Device, error) { return s.Open("") }})
}

// TestConnectionManagerOpensSeveralTimes checks that the connection manager of a Stack can be opened several times, and
// works until the last user has closed it.
func TestConnectionManagerOpensSeveralTimes(t *testing.T) {
	s, _ := newStack(t)
	at := netip.MustParseAddrPort("127.0.0.1:0")
	for range 2 {
		a, err := s.ConnectionManager(nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.ConnectionManager(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		l, err := b.Listen(at, 0)
		if err != nil {
			t.Fatalf("Listen after another user has closed the manager: got %v, want nil", err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestConnections runs the tests of package cm on a device in this process.
func TestConnections(t *testing.T) {
	s, _ := newStack(t)
	suite.RunCM(t, suite.CMConfig{
		Config:  suite.Config{Open: func() (*verbs.Device, error) { return s.Open("") }},
		Manager: func() (*cm.Manager, error) { return s.ConnectionManager(nil) },
		Addr:    netip.MustParseAddr("127.0.0.1"),
	})
}
