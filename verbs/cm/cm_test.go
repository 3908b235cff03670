package cm_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"verbena/internal/leaktest"
	"verbena/service/servicetest"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/embed"
	"verbena/verbs/service"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// testTimeout limits waits that usually take milliseconds.
const testTimeout = 20 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newService returns a service in this process with a device at an address.
func newService(t testing.TB, addr string) *service.Service {
	t.Helper()
	s, err := service.At(servicetest.Start(t, addr))
	must(t, err)
	return s
}

// TestAddressesOutliveIDs checks that listeners, requests and connections report their addresses even after their IDs,
// or the manager, have been closed.
func TestAddressesOutliveIDs(t *testing.T) {
	t.Parallel()
	t.Run("embed", func(t *testing.T) {
		t.Parallel()
		const addr = "127.91.16.1"
		s, err := embed.NewSoftware(embed.Software{Addr: netip.MustParseAddr(addr)})
		must(t, err)
		defer s.Close()
		m, err := s.ConnectionManager(nil)
		must(t, err)
		dev, err := s.Open("")
		must(t, err)
		defer dev.Close()
		checkAddresses(t, m, dev, addr)
	})
	t.Run("service", func(t *testing.T) {
		t.Parallel()
		const addr = "127.91.16.2"
		s := newService(t, addr)
		m, err := s.ConnectionManager()
		must(t, err)
		dev, err := s.Open("")
		must(t, err)
		defer dev.Close()
		checkAddresses(t, m, dev, addr)
	})
}

func checkAddresses(t *testing.T, m *cm.Manager, dev *verbs.Device, addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	pd, err := dev.AllocPD()
	must(t, err)
	cq, err := dev.CreateCQ(10, nil)
	must(t, err)
	qp := func() *verbs.QP {
		q, err := pd.CreateQP(verbs.QPInit{SendCQ: cq})
		must(t, err)
		return q
	}
	l, err := m.Listen(netip.AddrPortFrom(netip.MustParseAddr(addr), 0), 0)
	must(t, err)
	at := l.Addr()
	if at.Addr().String() != addr || at.Port() == 0 {
		t.Fatalf("Listener.Addr: got %v, want address %s with a port", at, addr)
	}
	request := func(qp *verbs.QP) (*cm.Conn, *cm.Request, chan error) {
		c, err := m.Resolve(ctx, cm.Target{Addr: at})
		must(t, err)
		must(t, c.Init(qp))
		done := make(chan error, 1)
		go func() {
			_, err := c.Connect(ctx, qp, cm.Param{}, nil)
			done <- err
		}()
		r, err := l.Accept(ctx)
		must(t, err)
		return c, r, done
	}
	refusedQP, activeQP, passiveQP := qp(), qp(), qp()
	x, refused, done := request(refusedQP)
	must(t, refused.Reject(nil))
	<-done
	active, r, done := request(activeQP)
	must(t, r.Init(passiveQP))
	passive, err := r.Accept(passiveQP, cm.Param{}, nil)
	must(t, err)
	must(t, <-done)
	check := func(when string) {
		t.Helper()
		for _, v := range []struct {
			what      string
			got, want netip.AddrPort
		}{
			{"Listener.Addr", l.Addr(), at},
			{"Request.RemoteAddr of a refused request", refused.RemoteAddr(), x.LocalAddr()},
			{"LocalAddr of the passive side", passive.LocalAddr(), at},
			{"RemoteAddr of the active side", active.RemoteAddr(), at},
			{"RemoteAddr of the passive side", passive.RemoteAddr(), active.LocalAddr()},
			{"Request.RemoteAddr", r.RemoteAddr(), active.LocalAddr()},
		} {
			if v.got != v.want || v.got.Addr().String() != addr || v.got.Port() == 0 {
				t.Errorf("%s, %s: got %v, want %v", when, v.what, v.got, v.want)
			}
		}
	}
	check("open")
	for _, c := range []*cm.Conn{x, active, passive} {
		must(t, c.Close())
	}
	must(t, l.Close())
	check("closed")
	must(t, m.Close())
	check("the manager closed")
	for _, q := range []*verbs.QP{refusedQP, activeQP, passiveQP} {
		must(t, q.Close())
	}
	must(t, cq.Close())
	must(t, pd.Close())
}
