package quota

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

// TestParseLimit tests the accepted and the refused values of verbena serve --limit.
func TestParseLimit(t *testing.T) {
	defaults := Limits{QPs: {PerUser: 10, Total: 40}}
	for text, want := range map[string]Limit{
		"qps=5": {PerUser: 5, Total: 40}, "qps=40": {PerUser: 40, Total: 40}, "qps=50/60": {PerUser: 50, Total: 60},
		"qps=0/0": {}, "qps=7/0": {PerUser: 7},
		"qps=1K/2M": {PerUser: 1 << 10, Total: 2 << 20},
	} {
		l := defaults
		if err := l.Parse(text); err != nil || l[QPs] != want {
			t.Errorf("Parse %s: got %+v, %v, want %+v", text, l[QPs], err, want)
		}
	}
	l := defaults
	if err := l.Parse("ring-bytes=16G"); err != nil || l[RingBytes] != (Limit{PerUser: 16 << 30}) {
		t.Errorf("Parse of ring-bytes: got %+v, %v", l[RingBytes], err)
	}
	for _, text := range []string{"", "qps", "qps=", "qps=x", "qps=-1", "qps=1/", "qps=41",
		"qps=0", "qps=5/4", "things=4", "qps=99999999999999999999", "qps=99999999999T", "qps=K"} {
		l := defaults
		if err := l.Parse(text); !errors.Is(err, syscall.EINVAL) || l != defaults {
			t.Errorf("Parse %q: got %v, want EINVAL", text, err)
		}
	}
	const want = `limit "qps": write KIND=PER-USER or KIND=PER-USER/TOTAL: invalid argument`
	if err := l.Parse("qps"); err == nil || err.Error() != want {
		t.Errorf("Parse: got %v, want %s", err, want)
	}
}

// TestPrintedLimitsAreParsed tests that each kind's limit, printed with all digits, is parsed to the same limit.
func TestPrintedLimitsAreParsed(t *testing.T) {
	for _, name := range KindNames() {
		kind, err := parseKind(name)
		if err != nil || kind.String() != name {
			t.Errorf("kind of %s: got %v and error %v, want the same name", name, kind, err)
		}
		for _, want := range []Limit{{}, {PerUser: 1}, {PerUser: 1<<64 - 1}, {1, 1}, {3 << 40, 1<<64 - 1}} {
			text := fmt.Sprintf("%v=%d/%d", kind, want.PerUser, want.Total)
			var l, all Limits
			l[kind], all[kind] = Limit{PerUser: 5, Total: 6}, want
			if err := l.Parse(text); err != nil || l != all {
				t.Errorf("Parse %s: got %+v and error %v, want %+v", text, l[kind], err, want)
			}
		}
	}
}
