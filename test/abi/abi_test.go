package abi

import "testing"

func TestComplaints(t *testing.T) {
	got, version := Kernel()
	if len(got) < 300 || version == "" {
		t.Fatalf("%d answers of %q", len(got), version)
	}
	for question, answer := range Parse(differs) {
		got[question] = answer
	}
	if c := Complaints(got); len(c) != 0 {
		t.Errorf("%q", c)
	}
	got["QP"], got["something new"] = "EINVAL", "OK"
	delete(got, "CQ")
	if c := Complaints(got); len(c) != 3 {
		t.Errorf("%q", c)
	}
}
