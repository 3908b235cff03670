package abi

import "testing"

func TestMismatches(t *testing.T) {
	for _, tt := range []struct {
		answers Answers
		least   int
		one     string
	}{{Device, 300, "CQ"}, {Descriptors, 200, "completion poll"}} {
		got, version := tt.answers.Kernel()
		if len(got) < tt.least || version == "" {
			t.Fatalf("Kernel: got %d answers of version %q, want more", len(got), version)
		}
		for question, answer := range Parse(tt.answers.differs) {
			got[question] = answer
		}
		if c := tt.answers.Mismatches(got); len(c) != 0 {
			t.Errorf("Complaints of the kernel's answers: got %q, want none", c)
		}
		got["QP"], got["something new"] = "EINVAL", "OK"
		delete(got, tt.one)
		if c := tt.answers.Mismatches(got); len(c) != 3 {
			t.Errorf("Complaints of changed answers: got %q, want 3", c)
		}
	}
}

func TestParseKeepsRepeatedQuestions(t *testing.T) {
	got := Parse("# a comment: no\nread: 1\nread: 2\nread: EAGAIN\nno answer\n")
	if len(got) != 3 || got["read"] != "1" || got["read again"] != "2" || got["read again again"] != "EAGAIN" {
		t.Errorf("Parse of repeated questions: got %q, want each answer separately", got)
	}
}
