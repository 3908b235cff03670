package umem

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrStuck reports that the maximum number of accesses to the user's memory is in progress, and that none of them ends.
// Unresponsive memory, such as a file of a FUSE server that hangs, blocks each thread that accesses it.
var ErrStuck = fmt.Errorf("too many accesses to memory of this user are blocked: %w", syscall.EFAULT)

// Copies limits the number of concurrent accesses to the memory of one user's processes. A Copies thus limits the
// number of threads that blocked memory can block. A nil Copies has no limit. All methods are safe for concurrent use.
type Copies struct {
	most  int64
	all   *Copies // limit for all users together; nil if there is none
	going atomic.Int64
	// stuck is set when the maximum has been in progress for longer than the allowed time. Until an access ends,
	// further accesses fail at once.
	stuck   atomic.Bool
	waiting atomic.Int64
}

const (
	copiesTimeout = time.Second
	copiesLook    = time.Millisecond
	// maxCopiesWaiting limits the number of accesses that wait to begin. Further accesses fail.
	maxCopiesWaiting = 16
	// ownCopies is the number of a user's accesses that are not counted in the limit of all users. The exemption makes
	// the usual case cheaper, and allows users without blocked memory to continue.
	ownCopies = 8
)

// NewCopies returns the limit of one user: most concurrent accesses. all is the limit for all users together and may be
// nil. The limit all applies to the accesses of each user beyond the first few.
func NewCopies(most int, all *Copies) *Copies { return &Copies{most: int64(most), all: all} }

// InProgress returns the number of accesses in progress.
func (c *Copies) InProgress() int {
	if c == nil {
		return 0
	}
	return int(c.going.Load())
}

// beginAccess must be called before an access, and end must be called after the access. beginAccess may wait for other
// accesses. beginAccess returns ErrStuck if the limit is reached.
func (c *Copies) beginAccess() error {
	if c == nil || c.increment() {
		return nil
	}
	c.decrement()
	return c.waitForOtherAccesses()
}

func (c *Copies) endAccess() {
	if c == nil {
		return
	}
	c.decrement()
	if c.stuck.Load() {
		c.stuck.Store(false)
	}
}

// increment increments the count and reports whether it is within the limit. decrement decrements the count in either
// case.
func (c *Copies) increment() bool {
	n := c.going.Add(1)
	room := n <= c.most
	if n > ownCopies && c.all != nil {
		room = c.all.going.Add(1) <= c.all.most && room
	}
	return room
}

func (c *Copies) decrement() {
	if c.going.Add(-1) >= ownCopies && c.all != nil {
		c.all.going.Add(-1)
	}
}

func (c *Copies) waitForOtherAccesses() error {
	defer c.waiting.Add(-1)
	if c.waiting.Add(1) > maxCopiesWaiting {
		return ErrStuck
	}
	for start := time.Now(); !c.stuck.Load(); time.Sleep(copiesLook) {
		if c.increment() {
			return nil
		}
		c.decrement()
		if time.Since(start) > copiesTimeout {
			c.stuck.Store(true)
		}
	}
	return ErrStuck
}
