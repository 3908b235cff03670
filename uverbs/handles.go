package uverbs

import (
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/internal/states"
)

// kind is the kind of an object, in the order in which a context destroys them.
type kind uint8

const (
	kindQP kind = iota
	kindAH
	kindMW
	kindMR
	kindSRQ
	kindCQ
	kindXRCD
	kindPD
	numKinds
)

func (k kind) String() string {
	return [...]string{"QP", "AH", "MW", "MR", "SRQ", "CQ", "XRCD", "PD"}[k]
}

// resource is what stands behind a handle: one of the types *qpObject, *ahObject and so on.
type resource interface {
	kind() kind
	// destroy frees it in the midlayer. It may sleep.
	destroy() error
	// Abandon takes it out of the device's account: it is destroyed after the device has gone. It may not sleep.
	Abandon()
}

// object is an entry of a context's table. (struct ib_uobject)
type object struct {
	handle uint32
	res    resource
	// users counts the commands that use the object now; it is exclusive while the object is being made or
	// destroyed.
	users atomic.Int32
	// gone: destroyed in the midlayer. Only whoever has the object exclusively, or File.life, may look.
	gone bool

	prev, next *object // in order of creation; under table.mu
}

const exclusive = -1

// use takes a share in the object, EBUSY while somebody has it exclusively.
func (o *object) use() error {
	for {
		n := o.users.Load()
		if n == exclusive {
			return syscall.EBUSY
		}
		if o.users.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// publish ends the exclusive hold.
func (o *object) publish() { o.users.Store(0) }

// table holds the objects of one context. The zero table is empty.
type table struct {
	mu          sync.RWMutex
	last        uint32 // the handle given out last
	objects     map[uint32]*object
	first, tail *object // in order of creation
}

// add enters a new object, which the caller has exclusively until it calls publish. Handles count up, so that a
// stale one is not soon taken for another's; those from 1 to 2^31-1 are given out, as in the kernel.
func (t *table) add(res resource) *object {
	o := &object{res: res}
	o.users.Store(exclusive)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.objects == nil {
		t.objects = map[uint32]*object{}
	}
	for {
		if t.last++; t.last > math.MaxInt32 {
			t.last = 1
		}
		if t.objects[t.last] == nil {
			break
		}
	}
	o.handle = t.last
	t.objects[o.handle] = o
	if o.prev = t.tail; o.prev != nil {
		o.prev.next = o
	} else {
		t.first = o
	}
	t.tail = o
	return o
}

// remove takes the object out. The caller has it exclusively.
func (t *table) remove(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.objects, o.handle)
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		t.first = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	} else {
		t.tail = o.prev
	}
	o.prev, o.next = nil, nil
}

// find returns the object of a handle without taking a share, nil if there is none.
func (t *table) find(handle uint32) *object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.objects[handle]
}

// take returns the object of a handle for destruction, exclusively. ENOENT if there is none, EINVAL if it is of
// another kind, EBUSY if somebody uses it. (rdma_lookup_get_uobject, UVERBS_LOOKUP_DESTROY)
func (t *table) take(handle uint32, k kind) (*object, error) {
	t.mu.Lock() // not only for reading: see all
	defer t.mu.Unlock()
	o := t.objects[handle]
	if o == nil {
		return nil, fmt.Errorf("handle %d: no such object: %w", handle, syscall.ENOENT)
	}
	if have := o.res.kind(); have != k {
		return nil, fmt.Errorf("handle %d is of a %v, not a %v: %w", handle, have, k, syscall.EINVAL)
	}
	if !o.users.CompareAndSwap(0, exclusive) {
		return nil, fmt.Errorf("%v with handle %d is in use by another thread: %w", k, handle, syscall.EBUSY)
	}
	return o, nil
}

// all yields the objects, latest first, with mu held for reading: one that nobody has exclusively is not destroyed
// before the next is asked for.
func (t *table) all() iter.Seq[*object] {
	return func(yield func(*object) bool) {
		t.mu.RLock()
		defer t.mu.RUnlock()
		for o := t.tail; o != nil; o = o.prev {
			if !yield(o) {
				return
			}
		}
	}
}

// share is an object in use by a command.
type share[R resource] struct {
	obj *object
	res R
}

// lookup returns the object of a handle for use until done is called. EIO in a zombie, ENOENT if there is none, EINVAL
// if it is of another kind, EBUSY while somebody has it exclusively. (rdma_lookup_get_uobject, UVERBS_LOOKUP_READ)
func lookup[R resource](f *File, handle uint32) (share[R], error) {
	if f.now() == states.ContextZombie {
		return share[R]{}, errGone
	}
	o := f.objects.find(handle)
	if o == nil {
		return share[R]{}, fmt.Errorf("handle %d: no such object: %w", handle, syscall.ENOENT)
	}
	res, ok := o.res.(R)
	if !ok {
		return share[R]{}, fmt.Errorf("handle %d is of a %v: %w", handle, o.res.kind(), syscall.EINVAL)
	}
	if err := o.use(); err != nil {
		return share[R]{}, fmt.Errorf("%v with handle %d is being made or destroyed: %w", res.kind(), handle, err)
	}
	return share[R]{o, res}, nil
}

func (s share[R]) done() {
	if s.obj != nil {
		s.obj.users.Add(-1)
	}
}
