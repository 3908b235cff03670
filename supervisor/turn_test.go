package supervisor

import (
	"sync/atomic"
	"testing"
)

// TestTurnIsPassedOnce: however often an answer says that it takes long, one turn is passed.
func TestTurnIsPassedOnce(t *testing.T) {
	for _, tt := range []struct {
		name     string
		several  bool // call
		watchdog bool // has claimed the turn in between
		free     uint32
	}{
		{"one caller", false, false, 0},
		{"one caller, watchdog", false, true, 1},
		{"several callers", true, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &worker{session: &Session{}, hasTurn: true}
			turn := &w.session.turn
			turn.init(func() {}, nil)
			atomic.StoreUint32(&turn.free, 0) // it is the worker's
			for i := range turn.watching {
				turn.watching[i].Store(true) // no timers
			}
			if tt.several {
				turn.mixture.Store(mixtureLimit)
			}
			w.begin(callOpen)
			if tt.watchdog && w.busy.CompareAndSwap(busy, claimed) {
				turn.pass()
			}
			w.begin(callOpen)
			w.begin(callOpen)
			w.end()
			if n := atomic.LoadUint32(&turn.free); n != tt.free {
				t.Errorf("%d turns are free, want %d", n, tt.free)
			}
			if w.hasTurn != (tt.free == 0) {
				t.Errorf("the worker has a turn: %v", w.hasTurn)
			}
		})
	}
}
