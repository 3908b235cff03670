package loopback_test

import (
	"testing"

	"go.uber.org/goleak"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/ibtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	ibtest.Run(t, func(t testing.TB) *ib.Device { return loopback.New("loop0", t.Logf).IB() })
}

// A consumer that ends a queue pair does not fail because that is in error by then, as by a reset of the device.
func TestEndInError(t *testing.T) {
	d := loopback.New("loop0", t.Logf).IB()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(new(ib.Core).Register(d))
	pd, err := d.AllocPD(nil)
	must(err)
	cq, err := d.CreateCQ(ib.CQAttr{Entries: 1}, nil, nil, nil)
	must(err)
	qp, err := pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq}, nil)
	must(err)
	must(qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags, nil))
	seen := qp.State() // by the midlayer's Modify
	d.SetError()
	for _, to := range []ib.QPState{ib.QPErr, ib.QPReset} {
		must(qp.Driver().Modify(&ib.QPAttr{CurState: seen, State: to}, ib.QPAttrState, nil))
		if s := qp.State(); s != to {
			t.Errorf("state %v, want %v", s, to)
		}
	}
}
