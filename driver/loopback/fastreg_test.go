package loopback_test

import (
	"testing"

	"verbena/ib"
	"verbena/umem"
)

// TestFastRegRequiresLocalWrite checks that a work request cannot register memory with remote write access but without
// local write access. RegMR has the same rule.
func TestFastRegRequiresLocalWrite(t *testing.T) {
	w := newConnectedPair(t, ib.QPTypeRC, false, 64, nil)
	defer w.close(t)
	mem := umem.NewLocal()
	addr := must(mem.Add(make([]byte, 64)))(t)
	mr := must(w.qps[0].PD().AllocMR(2))(t)
	w.free = append(w.free, mr.Dereg)
	mustSucceed(t, mr.Map(mem, nil, []umem.Range{{Addr: addr, Length: 64}}, addr))
	reg := &ib.FastReg{MR: mr, Key: mr.RKey(), Access: ib.AccessRemoteWrite}
	must(w.qps[0].PostSend(ib.SendWR{Opcode: ib.WRRegMR, Flags: ib.SendSignaled, Reg: reg}))(t)
	wc := make([]ib.WC, 1)
	if n := must(w.cq.Poll(wc))(t); n != 1 || wc[0].Status != ib.WCLocQPOpErr {
		t.Fatalf("Poll: got %d completions, status %v, want %v", n, wc[0].Status, ib.WCLocQPOpErr)
	}
}
