package weak_test

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/loopback"
	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibtest"
	"verbena/ib/weak"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/netdev"
)

var (
	seeds = flag.Int("weak.seeds", 0,
		"number of seeds with which the whole suite runs; 0: one, with some groups of it")
	firstSeed = flag.Uint64("weak.seed", 1, "the first of them")
)

// modelChoices is the set of choices that the model of ibtest tolerates. The model polls a queue once for all
// completions, expects its own queue to be full when the inner driver's queue is full, and reads memory before it
// polls.
const modelChoices = weak.All &^ (1<<weak.LateCompletion | 1<<weak.MissedCompletion | 1<<weak.CrossOrder | 1<<weak.LateFlush |
	1<<weak.ExactRoom | 1<<weak.LateTarget | 1<<weak.LateRead | 1<<weak.PoisonedTarget | 1<<weak.WriteOrder)

func newLoopback(t testing.TB) *ib.DeviceHandle { return loopback.New("weak0", t.Logf).Handle() }

func newRXE(t testing.TB) *ib.DeviceHandle {
	d, err := rxe.New(rxe.Config{
		Name:    "weak0",
		Netdev:  netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
		Addrs:   []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		Network: simnet.New(simnet.Config{}),
		Fabric:  &rxe.Fabric{},
		Logf:    t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d.Handle()
}

// newWeakFactory returns a factory of weak devices.
func newWeakFactory(inner ibtest.NewDevice, c weak.Config) ibtest.NewDevice {
	return func(t testing.TB) *ib.DeviceHandle {
		h := inner(t)
		h.Wrap(func(d ib.Driver) ib.Driver { return weak.New(d, c) })
		return h
	}
}

// TestContract checks that a weak device meets the contract. The checks of the suite are correct consumers. The checks
// must work under every choice.
func TestContract(t *testing.T) {
	for _, d := range []struct {
		name  string
		inner ibtest.NewDevice
		short []string // test groups that take at most two seconds
	}{{"loopback", newLoopback, []string{"Data", "CQ", "MW"}}, {"rxe", newRXE, []string{"SRQ", "FastReg", "XRC"}}} {
		t.Run(d.name, func(t *testing.T) {
			options := []ibtest.Option{ibtest.Bubble(), ibtest.Seeds(-1)}
			if *seeds == 0 {
				t.Parallel()
				options = append(options, ibtest.Groups(d.short...))
			}
			for i := range max(1, *seeds) {
				c := weak.Config{Seed: *firstSeed + uint64(i)}
				t.Run(fmt.Sprintf("seed %d", c.Seed), func(t *testing.T) { ibtest.Run(t, newWeakFactory(d.inner, c), options...) })
			}
		})
	}
}

// TestModel runs the model of ibtest with the choices that the model tolerates.
func TestModel(t *testing.T) {
	ibtest.Model(t, func(t testing.TB, seed uint64) (*ib.DeviceHandle, bool) {
		return newWeakFactory(newLoopback, weak.Config{Seed: seed, Choices: modelChoices})(t), false
	}, ibtest.Bubble(), ibtest.Seeds(100), ibtest.RoomyQueues())
}

// TestLateNotificationIsAllowed checks a completion that arrives just before checked mode inspects an armed queue. If
// the completion is reported soon afterwards, there is no violation.
func TestLateNotificationIsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 200 * time.Millisecond
		h, core := newWeakFactory(newLoopback, weak.Config{Seed: 1,
			Choices: weak.All &^ weak.Of(weak.SlowMethods)})(t), &ib.Core{}
		check.On(core, check.Config{Timeout: timeout, Report: func(v check.Violation) { t.Error(v) }})
		must(t, core.Register(h))
		pd, err := h.Device().AllocPD()
		must(t, err)
		cq, err := h.Device().CreateCQ(ib.CQInit{Entries: 8, Handler: func(cq *ib.CQ) {
			for missed := true; missed; {
				var wc [8]ib.WC
				if _, err := cq.Poll(wc[:]); err != nil {
					t.Error(err)
				}
				if missed, err = cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); err != nil {
					t.Error(err)
				}
			}
		}})
		must(t, err)
		qp, err := pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq,
			Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
		must(t, err)
		here, err := h.Device().Local(1)
		must(t, err)
		must(t, qp.Prepare(here, 0))
		_, err = qp.PostRecv(ib.RecvWR{})
		must(t, err)
		_, err = cq.ReqNotify(ib.NotifyNextComp)
		must(t, err)
		testutil.AdvanceTime(timeout - 100*time.Microsecond)
		must(t, qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		testutil.AdvanceTime(2 * timeout)
		must(t, errors.Join(qp.Destroy(), cq.Destroy(), pd.Dealloc(), core.Unregister(h)))
	})
}
