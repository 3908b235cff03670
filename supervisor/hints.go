package supervisor

import (
	"fmt"
	"sync"
	"sync/atomic"

	"verbena/uverbs"
)

// sessionHints are the hints to the user of a session. The user sees each kind once.
type sessionHints struct {
	pending atomic.Bool // texts is not empty

	mu    sync.Mutex
	found [uverbs.NumHints]bool
	texts []string
}

// Hint implements uverbs.Hinter.
func (o *opener) Hint(h uverbs.Hint, text string) {
	s := &o.session.hints
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found[h] {
		return
	}
	s.found[h] = true
	s.texts = append(s.texts, fmt.Sprintf("hint: %s (process %d): %s", o.id.name, o.id.pid, text))
	s.pending.Store(true)
}

// showHints shows the user the new hints. It may sleep. A thread of the program waits for the notice.
func (f *openFile) showHints() {
	t := f.session
	if !t.hints.pending.Load() || !t.hints.pending.Swap(false) {
		return
	}
	t.hints.mu.Lock()
	texts := t.hints.texts
	t.hints.texts = nil
	t.hints.mu.Unlock()
	for _, text := range texts {
		if t.info.Notice == nil || t.info.Notice(text) != nil {
			t.log.Info(text)
		}
	}
}
