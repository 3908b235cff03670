package modeltest

import (
	"fmt"
	"maps"
	"sync"
)

// IDOwners holds the existing numbers of queue pairs and keys of regions and windows, of all threads that use a
// device. It is safe for concurrent use.
type IDOwners struct {
	mu    sync.Mutex
	owner map[qpNumOrKey]*modelRunner
}

// qpNumOrKey is the number of a queue pair, or a key.
type qpNumOrKey struct {
	kind   byte
	number uint32
}

// NewIDOwners returns an empty set.
func NewIDOwners() *IDOwners { return &IDOwners{owner: map[qpNumOrKey]*modelRunner{}} }

// removeIDsOf removes the names of a thread, because the driver may assign them to other objects from now on. check
// adds the remaining ones again.
func (n *IDOwners) removeIDsOf(x *modelRunner) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.owner, func(_ qpNumOrKey, o *modelRunner) bool { return o == x })
}

// addIDsOf records the names of a thread's objects. It returns an error for a number that belongs to an
// object of another thread.
func (n *IDOwners) addIDsOf(x *modelRunner) error {
	now := map[qpNumOrKey]bool{}
	for _, q := range x.m.Queues.QPs {
		now[qpNumOrKey{'q', q.Num}] = true
	}
	for _, r := range x.m.Keys.Regions {
		if !r.Dead {
			now[qpNumOrKey{'l', r.LKey}] = true
			now[qpNumOrKey{'r', r.RKey}] = true
		}
	}
	for _, w := range x.m.Keys.Windows {
		if !w.Dead {
			now[qpNumOrKey{'r', w.RKey}] = true
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.owner, func(k qpNumOrKey, o *modelRunner) bool { return o == x && !now[k] })
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
