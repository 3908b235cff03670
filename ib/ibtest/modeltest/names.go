package modeltest

import (
	"fmt"
	"maps"
	"sync"
)

// Names holds the existing numbers of queue pairs and keys of regions and windows, of all threads that use a device. It
// is safe for concurrent use.
type Names struct {
	mu    sync.Mutex
	owner map[name]*runner
}

// name is the number of a queue pair, or a key.
type name struct {
	kind   byte
	number uint32
}

// NewNames returns an empty set.
func NewNames() *Names { return &Names{owner: map[name]*runner{}} }

// forget removes the names of a thread, because the driver may assign them to other objects from now on. check adds the
// remaining ones again.
func (n *Names) forget(x *runner) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.owner, func(_ name, o *runner) bool { return o == x })
}

// check records the names of a thread's objects. It returns an error for a number that belongs to an object of another
// thread.
func (n *Names) check(x *runner) error {
	now := map[name]bool{}
	for _, q := range x.m.QPs {
		now[name{'q', q.Num}] = true
	}
	for _, r := range x.m.Regions {
		if !r.Dead {
			now[name{'l', r.LKey}] = true
			now[name{'r', r.RKey}] = true
		}
	}
	for _, w := range x.m.Windows {
		if !w.Dead {
			now[name{'r', w.RKey}] = true
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.owner, func(k name, o *runner) bool { return o == x && !now[k] })
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
