package roce_test

import (
	"testing"
	"time"

	"verbena/roce"
)

func TestSyndromeKinds(t *testing.T) {
	for _, c := range []struct {
		s             roce.Syndrome
		ack, rnr, nak bool
		name          string
	}{
		{0x00, true, false, false, "ACK credits 0"},
		{0x05, true, false, false, "ACK credits 6"},
		{0x1e, true, false, false, "ACK credits 32768"},
		{0x1f, true, false, false, "ACK"},
		{0x20, false, true, false, "RNR NAK 655.36ms"},
		{0x2c, false, true, false, "RNR NAK 640µs"},
		{0x3f, false, true, false, "RNR NAK 491.52ms"},
		{0x40, false, false, false, "reserved syndrome 0x40"},
		{0x60, false, false, true, "NAK PSN Sequence Error"},
		{0x61, false, false, true, "NAK Invalid Request"},
		{0x62, false, false, true, "NAK Remote Access Error"},
		{0x63, false, false, true, "NAK Remote Operational Error"},
		{0x64, false, false, true, "NAK Invalid RD Request"},
		{0x65, false, false, true, "reserved syndrome 0x65"},
		{0x80, false, false, false, "reserved syndrome 0x80"},
		{0xe0, false, false, false, "reserved syndrome 0xe0"},
	} {
		if c.s.IsACK() != c.ack || c.s.IsRNR() != c.rnr || c.s.IsNAK() != c.nak {
			t.Errorf("%#02x: ACK %t RNR %t NAK %t", uint8(c.s), c.s.IsACK(), c.s.IsRNR(), c.s.IsNAK())
		}
		if got := c.s.String(); got != c.name {
			t.Errorf("%#02x is %q, want %q", uint8(c.s), got, c.name)
		}
	}
}

func TestCreditCodes(t *testing.T) {
	for _, c := range []struct {
		grant int
		want  roce.Syndrome
		says  int
	}{
		{-1, roce.ACKUnlimited, -1},
		{0, 0x00, 0},
		{4, 0x04, 4},
		{5, 0x04, 4}, // 5 has no code
		{6, 0x05, 6},
		{16, 0x08, 16},
		{100, 0x0d, 96},
		{1024, 0x14, 1024},
		{32768, 0x1e, 32768},
		{1 << 20, 0x1e, 32768},
	} {
		s := roce.ACK(c.grant)
		if s != c.want || s.Credits() != c.says || !s.IsACK() {
			t.Errorf("ACK(%d) = %#02x, %d credits; want %#02x, %d", c.grant, uint8(s), s.Credits(), uint8(c.want), c.says)
		}
	}
}

// The table is IBA table 45, in microseconds.
func TestRNRTimer(t *testing.T) {
	us := [32]int{
		655360, 10, 20, 30, 40, 60, 80, 120,
		160, 240, 320, 480, 640, 960, 1280, 1920,
		2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720,
		40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
	}
	for code, want := range us {
		d := time.Duration(want) * time.Microsecond
		if got := roce.RNRTimer(code).Duration(); got != d {
			t.Errorf("code %d is %v, want %v", code, got, d)
		}
		s := roce.RNRNAK(roce.RNRTimer(code))
		if !s.IsRNR() || s.RNRTimer() != roce.RNRTimer(code) {
			t.Errorf("RNRNAK(%d) = %#02x with timer %d", code, uint8(s), s.RNRTimer())
		}
	}
}

func TestAckTimeout(t *testing.T) {
	for code, want := range map[roce.AckTimeout]time.Duration{
		0:  0,
		1:  8192 * time.Nanosecond,
		14: 67108864 * time.Nanosecond,
		18: 1073741824 * time.Nanosecond,
		31: 8796093022208 * time.Nanosecond,
		32: 0, // five bits
	} {
		if got := code.Duration(); got != want {
			t.Errorf("code %d is %v, want %v", code, got, want)
		}
	}
}
