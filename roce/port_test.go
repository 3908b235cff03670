package roce_test

import (
	"testing"

	"verbena/roce"
)

func TestSourcePortRC(t *testing.T) {
	for _, c := range []struct {
		local, remote uint32
		want          uint16
	}{
		// The next rows are the ports that rdma_rxe of Linux 6.1 has used between these queue pairs.
		{0x11, 0x12, 0xc132},
		{0x12, 0x14, 0xc168},
		{0x13, 0x16, 0xc1a2},
		{0x15, 0x18, 0xc1f8},
		{0x16, 0x19, 0xc226},
		{0x17, 0x1a, 0xc256},

		{0, 0x12, 0xc000},
		{0x80, 0x80, 0xc001},         // the product has bit 14, which is folded onto bit 0
		{0x400, 0x400, 0xc001},       // the product has bit 20, which the first shift folds onto bit 0
		{0xffffff, 0xffffff, 0xff21}, // 0xfffffe000001
	} {
		got := roce.SourcePortRC(c.local, c.remote)
		if got != c.want {
			t.Errorf("SourcePortRC(%#x, %#x) = %#x, want %#x", c.local, c.remote, got, c.want)
		}
		if back := roce.SourcePortRC(c.remote, c.local); back != got {
			t.Errorf("SourcePortRC of %#x and %#x: got %#x in one direction and %#x in the other, want equal ports",
				c.local, c.remote, got, back)
		}
	}
}

func TestSourcePortFlowLabel(t *testing.T) {
	for fl, want := range map[uint32]uint16{
		0: 0xc000, 1: 0xc001, 0x3fff: 0xffff, 0x4000: 0xc001, 0xfc000: 0xc03f, 0xfffff: 0xffc0, 0xff100001: 0xc001,
	} {
		if got := roce.SourcePortFlowLabel(fl); got != want {
			t.Errorf("SourcePortFlowLabel(%#x) = %#x, want %#x", fl, got, want)
		}
	}
}

func TestSourcePortUD(t *testing.T) {
	for qpn, want := range map[uint32]uint16{
		0x14: 0xe8ea, 0x17: 0xf241, // Linux 6.1
		0: 0xc000, 1: 0xd872, 0xffffff: 0xf94d,
	} {
		if got := roce.SourcePortUD(qpn); got != want {
			t.Errorf("SourcePortUD(%#x) = %#x, want %#x", qpn, got, want)
		}
	}
}
