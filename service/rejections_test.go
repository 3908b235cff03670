package service

import (
	"slices"
	"testing"

	"verbena/explain"
)

// TestRejectionRows checks that each cause of a rejection has a row of the table of causes.
func TestRejectionRows(t *testing.T) {
	for why, name := range append(rejectionRows[:], rejectedEnded) {
		if !slices.ContainsFunc(explain.Table, func(r explain.Row) bool { return r.Name == name }) {
			t.Errorf("cause %d: got row %q, want one of the table", why, name)
		}
	}
}
