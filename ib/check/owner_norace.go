//go:build !race

package check

import "verbena/ib"

// raceDetector reports whether the race detector observes the program.
const raceDetector = false

// ownership has no content without the race detector.
type ownership struct{}

// AllowAccess has no effect without the race detector. AllowAccess may not sleep.
func AllowAccess() {}

func (r *trackedRequest) beginOwnership(bool) { _ = r.race }

func (r *trackedRequest) endOwnership() {}

func overwriteCompletions([]ib.WC) {}
