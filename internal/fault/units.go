package fault

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// ParseRate parses a number of bits per second, such as 100Mbit. "none" yields 0. Case is ignored.
func ParseRate(text string) (Rate, error) {
	if strings.EqualFold(strings.TrimSpace(text), "none") {
		return 0, nil
	}
	v, ok := parseNumber(text, map[string]float64{"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12})
	if !ok || v < 1 {
		return 0, fmt.Errorf("%q is not a rate: write 100Mbit, 10Gbit or none", text)
	}
	return Rate(v), nil
}

// ParseSize parses a number of bytes, such as 65536, 64K or 64KB. Case is ignored.
func ParseSize(text string) (Size, error) {
	v, ok := parseNumber(text, map[string]float64{
		"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30})
	if !ok || v < 0 || v != math.Trunc(v) {
		return 0, fmt.Errorf("%q is not a number of bytes: write 65536, 64K or 64KB", text)
	}
	return Size(v), nil
}

// parseNumber parses a number with a unit, in lower case. It returns false for a number of 2^63 or more.
func parseNumber(text string, units map[string]float64) (float64, bool) {
	text = strings.TrimSpace(text)
	end := strings.LastIndexFunc(text, func(r rune) bool { return !unicode.IsLetter(r) }) + 1
	v, err := strconv.ParseFloat(strings.TrimSpace(text[:end]), 64)
	unit, ok := units[strings.ToLower(text[end:])]
	v *= unit
	return v, ok && err == nil && v < 1<<63
}
