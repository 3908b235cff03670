package poller

import "testing"

// TestBriefSource tests that a source can be stopped before its thread has run for the first time, as that of a program
// that exits at once.
func TestBriefSource(t *testing.T) {
	w := newWorld(t)
	_, s, _ := w.rings()
	for range 200 {
		w.add(s).Stop()
	}
}

// TestSourceRefused tests that a source whose bell is no descriptor is refused, and leaves nothing behind.
func TestSourceRefused(t *testing.T) {
	w := newWorld(t)
	_, s, _ := w.rings()
	s.Bell = -1
	for range 200 {
		if _, err := w.Pollers.Add(w.user, s); err == nil {
			t.Fatal("Add: got no error for a bell that is no descriptor")
		}
	}
}
