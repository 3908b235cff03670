package supervisor

import (
	"testing"

	"verbena/internal/quota"
	"verbena/uverbs"
)

// TestLateWorkBelongsToSession tests that a worker runs work after an answer only for a process of its own session and
// user: the work may block the worker.
func TestLateWorkBelongsToSession(t *testing.T) {
	users := quota.New(quota.Limits{})
	own := &Session{user: users.User(1)}
	for _, tt := range []struct {
		name string
		of   uverbs.Process
		want bool
	}{
		{"the session's own process", &opener{session: own, user: own.user}, true},
		{"another session of the user", &opener{session: &Session{user: own.user}, user: own.user}, false},
		{"another user's process in the session", &opener{session: own, user: users.User(2)}, false},
		{"no process", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := newWorker(own).devices.RunLater(lateWork{}, tt.of); got != tt.want {
				t.Errorf("the worker runs the work: got %v, want %v", got, tt.want)
			}
		})
	}
}
