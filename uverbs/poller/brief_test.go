package poller

import "testing"

// TestStopBeforeFirstRun checks that a source can be stopped before its thread has run for the first time. A source is
// stopped so early if the program exits at once.
func TestStopBeforeFirstRun(t *testing.T) {
	w := newFixture(t)
	_, s, _ := w.newEventfdSource()
	for range 200 {
		w.addSource(s).Stop()
	}
}

// TestInvalidSourceIsRefused checks that Add fails for a source with an invalid doorbell descriptor, and leaves no
// resources behind.
func TestInvalidSourceIsRefused(t *testing.T) {
	w := newFixture(t)
	_, s, _ := w.newEventfdSource()
	s.Doorbell = -1
	for range 200 {
		if _, err := w.Pollers.Add(w.user, s); err == nil {
			t.Fatal("Add with an invalid doorbell descriptor: got nil, want an error")
		}
	}
}
