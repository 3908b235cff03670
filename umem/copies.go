package umem

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrStuck: as many accesses to the user's memory go on as may, and none ends. Memory that does not answer, such as a
// file of a FUSE server that hangs, holds up whoever touches it.
var ErrStuck = fmt.Errorf("too many accesses to memory of this user do not end: %w", syscall.EFAULT)

// Copies bounds how many accesses to the memory of one user's processes go on at a time, and so how many threads can wait
// for memory that does not answer. The nil Copies bounds nothing. It is safe for concurrent use.
type Copies struct {
	most  int64
	going atomic.Int64
	// stuck: as many as may had been going on for patience. Until one of them ends, others are refused at once.
	stuck   atomic.Bool
	waiting atomic.Int64
}

const (
	copiesPatience = time.Second
	copiesLook     = time.Millisecond
	// maxCopiesWaiting bounds those that wait to begin: beyond it they are refused.
	maxCopiesWaiting = 16
)

// NewCopies returns the bound of one user, who has at most so many accesses at a time.
func NewCopies(most int) *Copies { return &Copies{most: int64(most)} }

// Going is how many accesses go on now.
func (c *Copies) Going() int {
	if c == nil {
		return 0
	}
	return int(c.going.Load())
}

// begin comes before an access, and end after it. ErrStuck if there is no room; that there is, it may have to wait for.
func (c *Copies) begin() error {
	if c == nil || c.going.Add(1) <= c.most {
		return nil
	}
	c.going.Add(-1)
	return c.wait()
}

func (c *Copies) end() {
	if c == nil {
		return
	}
	c.going.Add(-1)
	if c.stuck.Load() {
		c.stuck.Store(false)
	}
}

func (c *Copies) wait() error {
	defer c.waiting.Add(-1)
	if c.waiting.Add(1) > maxCopiesWaiting {
		return ErrStuck
	}
	for start := time.Now(); !c.stuck.Load(); time.Sleep(copiesLook) {
		if c.going.Add(1) <= c.most {
			return nil
		}
		c.going.Add(-1)
		if time.Since(start) > copiesPatience {
			c.stuck.Store(true)
		}
	}
	return ErrStuck
}
