package roce_test

import (
	"testing"

	"verbena/roce"
)

func TestPSNWrapsAt24Bits(t *testing.T) {
	for _, c := range []struct {
		p    roce.PSN
		n    int
		want roce.PSN
	}{
		{0, 0, 0},
		{0, 1, 1},
		{0xffffff, 1, 0},
		{0xffffff, 2, 1},
		{0, -1, 0xffffff},
		{1, -2, 0xffffff},
		{0x7fffff, 1, 0x800000},
		{0xfffff0, 0x20, 0x10},
		{5, 1 << 24, 5},
		{5, -(1 << 24), 5},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("%#x.Add(%d) = %#x, want %#x", c.p, c.n, got, c.want)
		}
		if c.n == 1 && c.p.Next() != c.want {
			t.Errorf("%#x.Next() = %#x, want %#x", c.p, c.p.Next(), c.want)
		}
	}
	if got := roce.MakePSN(0xab123456); got != 0x123456 {
		t.Errorf("MakePSN keeps %#x", got)
	}
}

func TestPSNOrder(t *testing.T) {
	for _, c := range []struct {
		p, q roce.PSN
		diff int // p - q
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 0xffffff, 1}, // across the wrap
		{5, 0xfffffb, 10},
		{0x7fffff, 0, 1<<23 - 1}, // the largest distance that counts as after
		{0x800000, 0, -(1 << 23)},
		{0x800001, 0, -(1<<23 - 1)},
		{0, 0x7fffff, -(1<<23 - 1)},
		{0x7fffff, 0x800000, -1},
	} {
		if got := c.p.Diff(c.q); got != c.diff {
			t.Errorf("%#x.Diff(%#x) = %d, want %d", c.p, c.q, got, c.diff)
		}
		if got := c.p.Since(c.q); got != c.diff && got != c.diff+1<<24 {
			t.Errorf("%#x.Since(%#x) = %d, want %d modulo 2^24", c.p, c.q, got, c.diff)
		}
		if got := c.p.Less(c.q); got != (c.diff < 0) {
			t.Errorf("%#x.Less(%#x) = %t", c.p, c.q, got)
		}
		if c.diff > -(1 << 23) { // PSNs with a larger distance have no order
			if got := c.q.Diff(c.p); got != -c.diff {
				t.Errorf("%#x.Diff(%#x) = %d, want %d", c.q, c.p, got, -c.diff)
			}
		}
		if got := c.q.Add(c.diff); got != c.p {
			t.Errorf("%#x.Add(%d) = %#x, want %#x", c.q, c.diff, got, c.p)
		}
	}
}

func TestPSNIn(t *testing.T) {
	for _, c := range []struct {
		p, first roce.PSN
		n        int
		want     bool
	}{
		{10, 10, 0, false},
		{10, 10, 1, true},
		{11, 10, 1, false},
		{9, 10, 100, false},
		{1, 0xfffffe, 4, true},
		{2, 0xfffffe, 4, false},
		{0xfffffe, 0xfffffe, 4, true},
		{0xfffffd, 0xfffffe, 4, false},
	} {
		if got := c.p.In(c.first, c.n); got != c.want {
			t.Errorf("%#x.In(%#x, %d) = %t", c.p, c.first, c.n, got)
		}
	}
}
