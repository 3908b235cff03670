package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is written as Go writes it: 1.5s, 300ms, 20us.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(strings.TrimSpace(string(b)))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration: write 5s, 300ms or 20us", b)
	}
	*d = Duration(v)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Share is a number from 0 to 1, which may be written as a percentage: 1%.
type Share float64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Share) UnmarshalText(b []byte) error {
	text, percent := strings.CutSuffix(strings.TrimSpace(string(b)), "%")
	v, err := strconv.ParseFloat(text, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return fmt.Errorf("%q is not a share: write 1%% or 0.01", b)
	}
	*s = Share(v)
	return nil
}

// Rate is bits per second: 10Gbit, 100Mbit, 64kbit.
type Rate uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rate) UnmarshalText(b []byte) error {
	v, ok := number(string(b), map[string]float64{"bit": 1, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12})
	if !ok {
		return fmt.Errorf("%q is not a rate: write 10Gbit, 100Mbit or 64kbit", b)
	}
	*r = Rate(v)
	return nil
}

// Size is bytes: 4096, 256KB.
type Size uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) error {
	v, ok := number(string(b), map[string]float64{"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30})
	if !ok {
		return fmt.Errorf("%q is not a size: write 4096, 256KB or 1MB", b)
	}
	*s = Size(v)
	return nil
}

// number is a number with a unit.
func number(s string, units map[string]float64) (uint64, bool) {
	s = strings.TrimSpace(s)
	at := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if at < 0 {
		at = len(s)
	}
	v, err := strconv.ParseFloat(s[:at], 64)
	unit, ok := units[strings.TrimSpace(s[at:])]
	if v *= unit; err != nil || !ok || v > math.MaxInt64 {
		return 0, false
	}
	return uint64(v), true
}
