package strict

import (
	"strings"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/internal/observe"
)

// newDevice returns a registered device of a new core.
func newDevice(t *testing.T) *ib.Device {
	t.Helper()
	core := &ib.Core{}
	d := loopback.New("loop0", t.Logf)
	if err := core.Register(d.Handle()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.Unregister(d.Handle()); err != nil {
			t.Error(err)
		}
	})
	return d.Handle().Device()
}

// applyEnv applies an environment for the duration of the test. It returns the reports.
func applyEnv(t *testing.T, env map[string]string) *[]string {
	t.Helper()
	var reports []string
	t.Cleanup(func() { observe.NewDevice, observe.Default = nil, nil })
	if err := apply(func(name string) string { return env[name] }, func(s string) {
		reports = append(reports,
			s)
	}); err != nil {
		t.Fatal(err)
	}
	return &reports
}

// TestWeakDevicesSplitKeys tests that the devices of the named driver packages, and no others, are weak.
func TestWeakDevicesSplitKeys(t *testing.T) {
	for _, tt := range []struct {
		drivers string
		want    bool
	}{
		{"", false},
		{"verbena/driver/loopback", true},
		{"verbena/driver/rxe,verbena/driver/loopback", true},
		{"verbena/driver/rxe", false},
		{"loopback", false},
	} {
		t.Run(tt.drivers, func(t *testing.T) {
			applyEnv(t, map[string]string{WeakEnv: tt.drivers, SeedEnv: "1"})
			pd, err := newDevice(t).AllocPD()
			if err != nil {
				t.Fatal(err)
			}
			defer pd.Dealloc()
			mr, err := pd.RegBytes(make([]byte, 8), ib.AccessLocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			defer mr.Dereg()
			if got := mr.LKey() != mr.RKey(); got != tt.want {
				t.Errorf("different keys of a region: got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestCheckedModeReports tests that checked mode is on for cores of which the test knows nothing.
func TestCheckedModeReports(t *testing.T) {
	reports := applyEnv(t, map[string]string{CheckEnv: "1s"})
	d := newDevice(t)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Dealloc()
	handled := make(chan error, 1)
	cq, err := d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) {
		_, err := d.QueryPort(1) // may sleep
		handled <- err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Destroy()
	qp, err := pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: ib.QPCap{MaxSendWR: 1,
		MaxRecvWR: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer qp.Destroy()
	if _, err := cq.ReqNotify(ib.NotifyNextComp); err != nil {
		t.Fatal(err)
	}
	local, err := d.Local(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := qp.Prepare(local, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := qp.PostRecv(ib.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
		t.Fatal(err)
	}
	select {
	case <-handled:
	case <-time.After(10 * time.Second):
		t.Fatal("handler: got no call in 10 s, want one")
	}
	var wc [1]ib.WC
	if _, err := cq.Poll(wc[:]); err != nil {
		t.Error(err)
	}
	if got := strings.Join(*reports, "\n"); !strings.Contains(got, "Device.QueryPort") {
		t.Errorf("reports: got %q, want one of Device.QueryPort in the handler", got)
	}
}

// TestInvalidEnvironmentIsRefused tests that a mode without its value is an error.
func TestInvalidEnvironmentIsRefused(t *testing.T) {
	for _, env := range []map[string]string{
		{WeakEnv: "verbena/driver/loopback"},
		{WeakEnv: "verbena/driver/loopback", SeedEnv: "one"},
		{CheckEnv: "1"},
		{CheckEnv: "-1s"},
	} {
		if err := apply(func(name string) string { return env[name] }, nil); err == nil {
			t.Errorf("environment %v: got success, want an error", env)
		}
	}
	observe.NewDevice, observe.Default = nil, nil
}
