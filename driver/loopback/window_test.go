package loopback_test

import (
	"testing"

	"verbena/ib"
)

// TestForbiddenWindowBindsAreRefused checks binds of a window of type 1 that IBA 10.6.7.2 forbids. The binds use the
// current key, and zero-based addresses.
func TestForbiddenWindowBindsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change uint32 // change of the key
		access ib.AccessFlags
		want   ib.WCStatus
	}{
		{"another key", 1, ib.AccessRemoteRead, ib.WCSuccess},
		{"the current key", 0, ib.AccessRemoteRead, ib.WCMWBindErr},
		{"zero-based", 1, ib.AccessRemoteRead | ib.AccessZeroBased, ib.WCMWBindErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newConnectedPair(t, ib.QPTypeRC, false, 64, nil)
			defer w.close(t)
			pd := w.qps[0].PD()
			mr := must(pd.RegBytes(make([]byte, 64), ib.AccessLocalWrite|ib.AccessMWBind))(t)
			mw := must(pd.AllocMW(ib.MWType1))(t)
			w.free = append(w.free, mr.Dereg, mw.Dealloc)
			b := &ib.BindMW{MW: mw, MR: mr, RKey: mw.RKey() + c.change, Addr: mr.Addr(), Length: 64, Access: c.access}
			wr := ib.SendWR{Opcode: ib.WRBindMW, Flags: ib.SendSignaled, Bind: b}
			must(w.qps[0].PostSend(wr))(t)
			wc := make([]ib.WC, 1)
			if n := must(w.cq.Poll(wc))(t); n != 1 || wc[0].Status != c.want {
				t.Fatalf("Poll: got %d completions, status %v, want %v", n, wc[0].Status, c.want)
			}
		})
	}
}
