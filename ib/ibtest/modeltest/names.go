package modeltest

import (
	"fmt"
	"maps"
	"sync"
)

// NumberOwners holds the existing numbers of queue pairs and keys of regions and windows, of all threads that use a
// device. It is safe for concurrent use.
type NumberOwners struct {
	mu    sync.Mutex
	owner map[numberOrKey]*modelRunner
}

// numberOrKey is the number of a queue pair, or a key.
type numberOrKey struct {
	kind   byte
	number uint32
}

// NewNumberOwners returns an empty set.
func NewNumberOwners() *NumberOwners { return &NumberOwners{owner: map[numberOrKey]*modelRunner{}} }

// removeOwner removes the names of a thread, because the driver may assign them to other objects from now on. check
// adds the remaining ones again.
func (n *NumberOwners) removeOwner(x *modelRunner) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.owner, func(_ numberOrKey, o *modelRunner) bool { return o == x })
}

// recordOwnedNumbers records the names of a thread's objects. It returns an error for a number that belongs to an
// object of another thread.
func (n *NumberOwners) recordOwnedNumbers(x *modelRunner) error {
	now := map[numberOrKey]bool{}
	for _, q := range x.m.QPs {
		now[numberOrKey{'q', q.Num}] = true
	}
	for _, r := range x.m.Regions {
		if !r.Dead {
			now[numberOrKey{'l', r.LKey}] = true
			now[numberOrKey{'r', r.RKey}] = true
		}
	}
	for _, w := range x.m.Windows {
		if !w.Dead {
			now[numberOrKey{'r', w.RKey}] = true
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.owner, func(k numberOrKey, o *modelRunner) bool { return o == x && !now[k] })
	for k := range now {
		if k.number == 0 { // no key: a region without remote rights may have none
			continue
		}
		if o := n.owner[k]; o != nil && o != x {
			return fmt.Errorf("%c number %#x is given to two threads", k.kind, k.number)
		}
		n.owner[k] = x
	}
	return nil
}
