package service

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/ctl"
	"verbena/uapi"
)

// TestRaisedEventReachesConsumer tests that each event of the device, its port and a queue pair reaches the consumer,
// with the right port.
func TestRaisedEventReachesConsumer(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	dev := s.links.list[0].dev.Handle().Device()
	events := make(chan ib.Event, 10)
	stop := dev.OnEvent(func(e ib.Event) { events <- e })
	defer stop()
	onQP := make(chan ib.EventType, 10)
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.CreateCQ(ib.CQInit{Entries: 1})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
		Cap:   ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		Event: func(_ *ib.QP, e ib.EventType) { onQP <- e }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, err := range []error{qp.Destroy(), cq.Destroy(), pd.Dealloc()} {
			if err != nil {
				t.Error(err)
			}
		}
	}()
	if got, want := len(devEvents), int(uapi.EventDeviceSpeedChange); got != want { // all events except wq_fatal
		t.Errorf("events: got %d, want %d", got, want)
	}
	counted := func(name string) uint64 {
		stats, err := s.Stats("rxe0")
		if err != nil {
			t.Fatal(err)
		}
		return stats[0].Counters["event_"+name]
	}
	for _, e := range devEvents {
		before := counted(e.name)
		r := ctl.DevEvent{Name: "rxe0", Event: e.name}
		port := 0
		switch e.of {
		case subjectPort:
			port = 1
		case subjectQP:
			r.QP = qp.Num()
		case subjectCQ, subjectSRQ:
			continue // TestRaisedEventReachesConsumer does not cover this event; a test with programs does
		}
		if err := s.raiseDevEvent(r); err != nil {
			t.Errorf("raise %s: got %v, want success", e.name, err)
			continue
		}
		select {
		case got := <-events:
			if got.Type != e.typ || got.Port != port {
				t.Errorf("%s: got %v of port %d, want port %d", e.name, got.Type, got.Port, port)
			}
		case got := <-onQP:
			if got != e.typ || e.of != subjectQP {
				t.Errorf("%s: got %v, want an event of the queue pair", e.name, got)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: got no event in 20 s, want one", e.name)
		}
		if n := counted(e.name) - before; n != 1 {
			t.Errorf("%s: counter: got %d, want 1", e.name, n)
		}
	}
	if p, err := dev.QueryPort(1); err != nil || p.State != ib.PortActive {
		t.Errorf("port state: got %v and error %v, want active", p.State, err)
	}
}

// TestInvalidDevEventIsRefused tests that invalid requests are refused, and that the error lists the valid values.
func TestInvalidDevEventIsRefused(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	for _, x := range []struct {
		r    ctl.DevEvent
		want syscall.Errno
		says string
	}{
		{ctl.DevEvent{Event: "noon"}, syscall.EINVAL, "cq_err, qp_fatal"},
		{ctl.DevEvent{Event: strings.Repeat("x", 1<<10)}, syscall.EINVAL, "cq_err, qp_fatal"},
		{ctl.DevEvent{Name: "rxe9", Event: "port_err"}, syscall.ENODEV, "there are: rxe0"},
		{ctl.DevEvent{Event: "IBV_EVENT_PORT_ERR", Port: 2}, syscall.EINVAL, "port 1 only"},
		{ctl.DevEvent{Event: "port_err", Port: -1}, syscall.EINVAL, "port 1 only"},
		{ctl.DevEvent{Event: "port_err", QP: 1}, syscall.EINVAL, "does not concern a queue pair"},
		{ctl.DevEvent{Event: "device_fatal", Port: 1}, syscall.EINVAL, "does not concern a port"},
		{ctl.DevEvent{Event: "qp_fatal"}, syscall.EINVAL, "number of the queue pair is missing"},
		{ctl.DevEvent{Event: "qp_fatal", QP: 1<<32 - 1}, syscall.ENOENT, "verbena qp show"},
		{ctl.DevEvent{Event: "cq_err", CQ: 1}, syscall.ENOENT, "res show --json"},
		{ctl.DevEvent{Event: "srq_err", SRQ: 1 << 31, PID: 1}, syscall.ENOENT, "res show --json"},
	} {
		if x.r.Name == "" {
			x.r.Name = "rxe0"
		}
		_, err := c.Do(&ctl.Request{Op: ctl.OpDevEvent, Event: &x.r})
		if !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) || len(err.Error()) > 1000 {
			t.Errorf("%.80s: got %.500v, want %v and %q", x.r.Event, err, x.want, x.says)
		}
	}
	if err := s.DevUnplug("rxe0"); err != nil {
		t.Fatal(err)
	}
	if err := s.raiseDevEvent(ctl.DevEvent{Name: "rxe0", Event: "port_err"}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("event without a device: got %v, want ENODEV", err)
	}
}
