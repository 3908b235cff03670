package sort_closure

import (
	"slices"

	"verbena/ib"
)

// CQ sorts by what it knows.
type CQ struct{ ib.DriverCQ }

func (c *CQ) Poll(wc []ib.WC) (int, error) {
	slices.SortFunc(wc, func(a, b ib.WC) int { return int(a.ID) - int(b.ID) })
	return 0, nil
}
