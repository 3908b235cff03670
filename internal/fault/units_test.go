package fault

import "testing"

// TestParseRateAndSize tests the spellings of rates and sizes in scenario files and on the command line.
func TestParseRateAndSize(t *testing.T) {
	rate := func(s string) (uint64, error) { v, err := ParseRate(s); return uint64(v), err }
	size := func(s string) (uint64, error) { v, err := ParseSize(s); return uint64(v), err }
	for _, c := range []struct {
		kind  string
		parse func(string) (uint64, error)
		good  map[string]uint64
		bad   []string
	}{
		{"rate", rate, map[string]uint64{
			"10Gbit": 10e9, "10gbit": 10e9, "100 Mbit": 100e6, " 64kbit ": 64e3, "64Kbit": 64e3, "1.5Tbit": 1.5e12, "8bit": 8,
			"1e3bit": 1e3,
			"none":   0, "None": 0, "1.9bit": 1,
		}, []string{
			"", "5", "Gbit", "0bit", "0.5bit", "-1Mbit", "10Gb", "10G", "1,5Gbit", "nanbit", "infbit", "10000000Tbit",
			"1 2bit"}},
		{"size", size, map[string]uint64{
			"0": 0, "65536": 65536, "65536B": 65536, "64K": 64 << 10, "64k": 64 << 10, "64KB": 64 << 10, "64 kb": 64 << 10,
			"1.5M": 3 << 19,
			"1MB":  1 << 20, "2G": 2 << 30, "2GB": 2 << 30,
		}, []string{"", "K", "1.5", "-1", "64Kbit", "1T", "64KiB", "1K K", "nan", "inf", "8589934592G", "100packets"}},
	} {
		for text, want := range c.good {
			if got, err := c.parse(text); err != nil || got != want {
				t.Errorf("parse %s %q: got %d and error %v, want %d", c.kind, text, got, err, want)
			}
		}
		for _, text := range c.bad {
			if got, err := c.parse(text); err == nil {
				t.Errorf("parse %s %q: got %d, want an error", c.kind, text, got)
			}
		}
	}
}
