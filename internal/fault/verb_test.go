package fault

import (
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestVerbRuleForms tests the text of rules, and that a rule in the control protocol is decoded to the same rule.
func TestVerbRuleForms(t *testing.T) {
	for _, tt := range []struct {
		rule       VerbRule
		text, json string
	}{
		{VerbRule{Verb: "create_cq", Errno: "ENOMEM"}, "create_cq errno ENOMEM", `{"verb":"create_cq","errno":"ENOMEM"}`},
		{VerbRule{Verb: "create_cq", Errno: "ENOMEM", Nth: 2, Times: 1}, "create_cq errno ENOMEM from call 2 for 1",
			`{"verb":"create_cq","errno":"ENOMEM","nth":2,"times":1}`},
		{VerbRule{Verb: "reg_mr", Delay: 100 * time.Millisecond, Process: "server", Times: 3},
			"reg_mr delay 100ms for 3 process server",
			`{"verb":"reg_mr","delay_ns":100000000,"process":"server","times":3}`},
		{VerbRule{Verb: "modify_qp:rtr", Errno: "EIO", Delay: time.Minute, Nth: 1<<64 - 1, Times: 1<<64 - 1, Process: "17"},
			"modify_qp:rtr errno EIO delay 1m0s from call 18446744073709551615 for 18446744073709551615 process 17",
			`{"verb":"modify_qp:rtr","errno":"EIO","delay_ns":60000000000,"process":"17","nth":18446744073709551615,` +
				`"times":18446744073709551615}`},
		{VerbRule{Verb: "rdma_connect", Errno: "EIO", Nth: 1}, "rdma_connect errno EIO",
			`{"verb":"rdma_connect","errno":"EIO","nth":1}`},
	} {
		if got := tt.rule.String(); got != tt.text {
			t.Errorf("text of %+v: got %q, want %q", tt.rule, got, tt.text)
		}
		b, err := json.Marshal(tt.rule)
		if err != nil || string(b) != tt.json {
			t.Errorf("JSON of %+v: got %s and error %v, want %s", tt.rule, b, err, tt.json)
		}
		var back VerbRule
		if err := json.Unmarshal(b, &back); err != nil || back != tt.rule {
			t.Errorf("rule of %s: got %+v and error %v, want %+v", b, back, err, tt.rule)
		}
		if err := tt.rule.Validate(); err != nil {
			t.Errorf("Validate %+v: got %v, want no error", tt.rule, err)
		}
	}
}

func TestInvalidVerbRule(t *testing.T) {
	for _, tt := range []struct {
		rule VerbRule
		says string
	}{
		{VerbRule{Errno: "EIO"}, "no verb"},
		{VerbRule{Verb: "create_cq"}, "no effect"},
		{VerbRule{Verb: "create_cq", Errno: "ENOSENSE"}, `errno "ENOSENSE" is unknown`},
		{VerbRule{Verb: "create_cq", Errno: strings.Repeat("E", 65)}, `errno "` + strings.Repeat("E", 64) + `" is unknown`},
		{VerbRule{Verb: "create_cq", Errno: "EIO", Delay: -1}, "from 0 to 1m"},
		{VerbRule{Verb: "create_cq", Delay: time.Minute + 1}, "from 0 to 1m"},
		{VerbRule{Verb: "create_cq", Errno: "EIO", Process: strings.Repeat("x", 65)}, "65 bytes"},
	} {
		if err := tt.rule.Validate(); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("Validate %+v: got %v, want EINVAL and %q", tt.rule, err, tt.says)
		}
	}
}

// TestVerbRuleDefaults tests that a rule for the N-th call acts once by default.
func TestVerbRuleDefaults(t *testing.T) {
	for _, tt := range []struct{ nth, times, want uint64 }{{0, 0, 0}, {2, 0, 1}, {2, 3, 3}, {0, 3, 3}} {
		if got := (VerbRule{Nth: tt.nth, Times: tt.times}).WithDefaults(); got.Times != tt.want || got.Nth != tt.nth {
			t.Errorf("rule with nth %d and times %d: got %+v, want times %d", tt.nth, tt.times, got, tt.want)
		}
	}
}

// TestErrnoNames tests that each name in the list is the name of a number.
func TestErrnoNames(t *testing.T) {
	names := ErrnoNames()
	for _, name := range names {
		if e, ok := (&VerbRule{Errno: name}).ErrnoNumber(); !ok || e == 0 {
			t.Errorf("number of %s: got %d, %v, want a number", name, e, ok)
		}
	}
	if len(names) < 100 || names[0] != "EPERM" {
		t.Errorf("names: got %q, want all names from EPERM on", names)
	}
}
