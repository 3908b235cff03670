package supervisor

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/quota"
)

// TestAwaitCloses tests the wait of a call that lacks a resource: for a short time, and for a closing file of its user,
// with a limit. Calls of one user wait together. Files of other users, and other errors, cause no wait.
func TestAwaitCloses(t *testing.T) {
	ledger := quota.New(quota.Limits{})
	mine, other := ledger.User(1), ledger.User(2)
	lack := fmt.Errorf("open: %w", &quota.LimitError{Kind: quota.Contexts})
	for _, tt := range []struct {
		name   string
		err    error
		closed *quota.User // user with a closed file that does not end
		wants  bool
		waits  time.Duration
	}{
		{"success", nil, mine, false, 0},
		{"another error", errors.New("no"), mine, false, 0},
		{"nothing closed", lack, nil, true, leastCloseWait},
		{"another user's", lack, other, true, leastCloseWait},
		{"a file that does not end", lack, mine, true, mostCloseWait},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Supervisor{notifyFD: -1, files: map[inode]*openFile{}}
				if tt.closed != nil {
					f := &openFile{sup: s, user: tt.closed}
					f.calls.Store(closingFlag)
					s.files[inode{}] = f
				}
				began := time.Now()
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						if got := s.awaitCloses(mine, tt.err); got != tt.wants {
							t.Errorf("awaitCloses: got %t, want %t", got, tt.wants)
						}
					})
				}
				wg.Wait()
				if d := time.Since(began); d != tt.waits {
					t.Errorf("duration of awaitCloses: got %v, want %v", d, tt.waits)
				}
				if len(s.closeWaits) != 0 {
					t.Errorf("waiting users: got %d, want 0", len(s.closeWaits))
				}
			})
		})
	}
}
