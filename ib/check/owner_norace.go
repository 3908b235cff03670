//go:build !race

package check

// raceDetector reports whether the race detector observes the program.
const raceDetector = false

// ownership is unused without the race detector.
type ownership struct{}

func (r *trackedRequest) beginOwnership(bool) {}

func (r *trackedRequest) endOwnership() {}
