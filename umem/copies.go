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

// Copies bounds how many accesses to the memory of one user's processes go on at a time, and so how many threads can
// wait for memory that does not answer. The nil Copies bounds nothing. It is safe for concurrent use.
type Copies struct {
	most  int64
	all   *Copies // of all users together; nil: not bounded
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
	// ownCopies is how many of a user's accesses are not counted with those of all users, so that what is usual costs
	// less, and users who hold nothing up can go on.
	ownCopies = 8
)

// NewCopies returns the bound of one user, who has at most so many accesses at a time; all, which may be nil, is the
// bound of all users together, for those of each user beyond the first few.
func NewCopies(most int, all *Copies) *Copies { return &Copies{most: int64(most), all: all} }

// Going is how many accesses go on now.
func (c *Copies) Going() int {
	if c == nil {
		return 0
	}
	return int(c.going.Load())
}

// begin comes before an access, and end after it. ErrStuck if there is no room; that there is, it may have to wait for.
func (c *Copies) begin() error {
	if c == nil || c.up() {
		return nil
	}
	c.down()
	return c.wait()
}

func (c *Copies) end() {
	if c == nil {
		return
	}
	c.down()
	if c.stuck.Load() {
		c.stuck.Store(false)
	}
}

// up counts one more, and reports whether there is room for it; down counts one less, whether there was or not.
func (c *Copies) up() bool {
	n := c.going.Add(1)
	room := n <= c.most
	if n > ownCopies && c.all != nil {
		room = c.all.going.Add(1) <= c.all.most && room
	}
	return room
}

func (c *Copies) down() {
	if c.going.Add(-1) >= ownCopies && c.all != nil {
		c.all.going.Add(-1)
	}
}

func (c *Copies) wait() error {
	defer c.waiting.Add(-1)
	if c.waiting.Add(1) > maxCopiesWaiting {
		return ErrStuck
	}
	for start := time.Now(); !c.stuck.Load(); time.Sleep(copiesLook) {
		if c.up() {
			return nil
		}
		c.down()
		if time.Since(start) > copiesPatience {
			c.stuck.Store(true)
		}
	}
	return ErrStuck
}
