package supervisor

import (
	"sync/atomic"
	"testing"
)

// TestTokenIsPassedOnce tests that an answer passes its token only once, regardless of the number of calls of begin.
func TestTokenIsPassedOnce(t *testing.T) {
	for _, tt := range []struct {
		name     string
		several  bool // several threads make calls
		watchdog bool // the watchdog has claimed the token in between
		free     uint32
	}{
		{"one caller", false, false, 0},
		{"one caller, watchdog", false, true, 1},
		{"several callers", true, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorker(&Session{})
			w.token.held = true
			receiveTokens := &w.caller.session.tokens
			receiveTokens.init(func() {}, nil)
			atomic.StoreUint32(&receiveTokens.free, 0) // the worker holds the token
			for i := range receiveTokens.watching {
				receiveTokens.watching[i].Store(true) // disables the timers
			}
			if tt.several {
				receiveTokens.mixture.Store(mixtureLimit)
			}
			w.token.beginBusy()
			if tt.watchdog && w.token.busy.CompareAndSwap(busy, claimed) {
				receiveTokens.passToken()
			}
			w.token.beginBusy()
			w.token.beginBusy()
			w.token.endBusy()
			if n := atomic.LoadUint32(&receiveTokens.free); n != tt.free {
				t.Errorf("free tokens: got %d, want %d", n, tt.free)
			}
			if w.token.held != (tt.free == 0) {
				t.Errorf("token held by the worker: got %v, want %v", w.token.held, tt.free == 0)
			}
		})
	}
}
