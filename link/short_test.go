package link

import (
	"testing"

	"verbena/internal/fault"
	"verbena/roce"
)

// TestShortPacketIsDescribed checks that rules can judge a packet that is shorter than a BTH. Any host can send one.
func TestShortPacketIsDescribed(t *testing.T) {
	for n := range roce.BTHLen {
		p := Packet{Dest: 7, PKey: 1, Type: fault.QPTypeRC}
		if describe(&p, make([]byte, n)); p.Dest != 0 || p.PKey != 0 || p.Type != fault.AnyQP || p.Len != n {
			t.Errorf("%d bytes: got %+v, want no properties but the length", n, p)
		}
	}
}
