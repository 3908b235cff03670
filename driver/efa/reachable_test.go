package efa_test

import (
	"runtime"
	"testing"
	"weak"

	"verbena/driver/efa"
	"verbena/engine"
	"verbena/explain"
	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/link/simnet"
)

// TestRecorderKeepsNoObjects tests that a destroyed queue pair with requests in flight is unreachable while the
// recorder of causes remembers it, and that the context is unreachable after its close.
func TestRecorderKeepsNoObjects(t *testing.T) {
	rec := explain.New(explain.Config{Program: func(ib.UserContext) (explain.Program, bool) {
		return explain.Program{User: quota.ID{UID: 1000}, PID: 42}, true
	}})
	var context weak.Pointer[program]
	t.Run("queue pair", func(t *testing.T) {
		p := newProgram(t, simnet.New(simnet.Config{}), "10.0.0.1", ib.QPTypeSRD, func(c *efa.Config) { c.Observer = rec })
		context = weak.Make(p)
		_, ah := p.newAH("10.0.0.1")
		for i := range uint16(depth) { // no receive is posted
			p.send(i, ah, p.qp.Num(), 0, 8, nil)
		}
		qp := weak.Make(ibuser.DriverSide(p.qp).(*engine.QP))
		p.replaceQP(ib.QPTypeSRD)
		testutil.Eventually(t, "the queue pair to be unreachable", func() bool {
			runtime.GC()
			return qp.Value() == nil
		})
	})
	testutil.Eventually(t, "the context to be unreachable", func() bool {
		runtime.GC()
		return context.Value() == nil
	})
	runtime.KeepAlive(rec)
}
