package loopback

import "testing"

// TestDestroyedCQsAreReleased checks that a queue pair releases references to destroyed completion queues of shared
// receive queues.
func TestDestroyedCQsAreReleased(t *testing.T) {
	d := New("loop0", nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	q := &QP{dev: d}
	for range 100 {
		c := &CQ{}
		q.recordForeignCQ(c)
		if err := c.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	kept := &CQ{}
	q.recordForeignCQ(kept)
	q.recordForeignCQ(kept)
	if len(q.usedCQs) != 1 || q.usedCQs[0] != completionQueue(kept) {
		t.Errorf("used completion queues: got %d, want only the remaining one", len(q.usedCQs))
	}
}
