package link

import (
	"errors"
	"net/netip"
	"testing"
)

func TestTrainValidate(t *testing.T) {
	dst := netip.MustParseAddr("10.0.0.1")
	for _, test := range []struct {
		name      string
		dst       netip.Addr
		len, size int
		packets   int // 0: malformed
	}{
		{"shortest", dst, 16, 16, 1},
		{"one, shorter than Size", dst, 16, 4096, 1},
		{"one, full", dst, 4096, 4096, 1},
		{"two", dst, 200, 100, 2},
		{"last is shorter", dst, 216, 100, 3},
		{"most packets", dst, 64 * 1000, 1000, 64},
		{"longest", dst, 65000, 4096, 16},
		{"no destination", netip.Addr{}, 100, 100, 0},
		{"empty", dst, 0, 100, 0},
		{"too long", dst, 65001, 4096, 0},
		{"too many packets", dst, 64*1000 + 16, 1000, 0},
		{"no size", dst, 100, 0, 0},
		{"negative size", dst, 100, -100, 0},
		{"size too small", dst, 15, 15, 0},
		{"last too short", dst, 215, 100, 0},
		{"only one too short", dst, 15, 100, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := &Train{Dst: test.dst, Buf: make([]byte, test.len), Size: test.size}
			err := tr.Validate()
			if test.packets == 0 {
				if !errors.Is(err, ErrTrain) {
					t.Fatalf("Validate: %v, want %v", err, ErrTrain)
				}
				return
			}
			if err != nil || tr.NumPackets() != test.packets {
				t.Fatalf("Validate: %v, %d packets, want %d", err, tr.NumPackets(), test.packets)
			}
			sum := 0
			for i := range tr.NumPackets() {
				p := tr.Packet(i)
				if i < tr.NumPackets()-1 && len(p) != test.size || cap(p) != len(p) {
					t.Errorf("packet %d has %d bytes, capacity %d", i, len(p), cap(p))
				}
				sum += len(p)
			}
			if sum != test.len {
				t.Errorf("the packets have %d bytes, the train %d", sum, test.len)
			}
			for i := range test.packets {
				c := tr.cut(i, test.packets)
				if err := c.Validate(); err != nil || c.NumPackets() != test.packets-i {
					t.Errorf("cut from %d: %v, %d packets", i, err, c.NumPackets())
				}
			}
		})
	}
}
