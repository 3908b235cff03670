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

// objectKind is the kind of an object. A context destroys its objects in the order of kinds.
type objectKind uint8

const (
	kindQP objectKind = iota
	kindAH
	kindMW
	kindMR
	kindSRQ
	kindCQ
	kindXRCD
	kindPD
	numKinds
)

func (k objectKind) String() string {
	return [...]string{"QP", "AH", "MW", "MR", "SRQ", "CQ", "XRCD", "PD"}[k]
}

// resource is the object of a handle: one of the types *qpObject, *ahObject and so on.
type resource interface {
	kind() objectKind
	// destroy destroys the object in the midlayer. destroy may sleep.
	destroy() error
	// Abandon excludes the object from the device's counts. The object can be destroyed after the device has been
	// removed. Abandon may not sleep.
	Abandon()
}

// object is an entry of a context's table. (struct ib_uobject)
type object struct {
	handle uint32
	res    resource
	// users is the number of commands that use the object. users is exclusive while the object is being created or
	// destroyed.
	users atomic.Int32
	// gone is set when the object has been destroyed in the midlayer. Access to gone requires exclusive use of the
	// object, or File.life.
	gone bool

	prev, next *object // in creation order; under table.mu
}

const exclusiveUse = -1

// acquireSharedUse takes a share of the object. acquireSharedUse returns EBUSY while a command uses the object
// exclusively.
func (o *object) acquireSharedUse() error {
	for {
		n := o.users.Load()
		if n == exclusiveUse {
			return syscall.EBUSY
		}
		if o.users.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// publish ends the exclusive use.
func (o *object) publish() { o.users.Store(0) }

// objectTable holds the objects of one context. The zero table is empty.
type objectTable struct {
	mu          sync.RWMutex
	last        uint32 // the most recently assigned handle
	objects     map[uint32]*object
	first, tail *object // in creation order
}

// add adds a new object. The caller uses the object exclusively until publish. Handles increase, so that a stale handle
// does not soon refer to another object. Handles range from 1 to 2^31-1, as in the kernel.
func (t *objectTable) add(res resource) *object {
	o := &object{res: res}
	o.users.Store(exclusiveUse)
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

// remove removes an object that the caller uses exclusively.
func (t *objectTable) remove(o *object) {
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

// find returns the object of a handle, or nil, without taking a share.
func (t *objectTable) find(handle uint32) *object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.objects[handle]
}

// takeForDestroy returns the object of a handle for destruction, with exclusive use. takeForDestroy returns ENOENT if
// the object does not exist, EINVAL if it is of another kind, and EBUSY if a command uses it. (rdma_lookup_get_uobject,
// UVERBS_LOOKUP_DESTROY)
func (t *objectTable) takeForDestroy(handle uint32, k objectKind) (*object, error) {
	t.mu.Lock() // a write lock is needed: see all
	defer t.mu.Unlock()
	o := t.objects[handle]
	if o == nil {
		return nil, fmt.Errorf("handle %d: no such object: %w", handle, syscall.ENOENT)
	}
	if have := o.res.kind(); have != k {
		return nil, fmt.Errorf("handle %d refers to a %v, want a %v: %w", handle, have, k, syscall.EINVAL)
	}
	if !o.users.CompareAndSwap(0, exclusiveUse) {
		return nil, fmt.Errorf("%v with handle %d is in use by another thread: %w", k, handle, syscall.EBUSY)
	}
	return o, nil
}

// all yields the objects, latest first, with mu read-locked. An object that is not used exclusively is not destroyed
// before the next object is yielded.
func (t *objectTable) all() iter.Seq[*object] {
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

// objectUse is an object that a command uses.
type objectUse[R resource] struct {
	obj *object
	res R
}

// lookup returns the object of a handle. The caller may use the object until it calls done. lookup returns EIO in a
// zombie, ENOENT if the object does not exist, EINVAL if it is of another kind, and EBUSY while a command uses it
// exclusively. (rdma_lookup_get_uobject, UVERBS_LOOKUP_READ)
func lookup[R resource](f *File, handle uint32) (objectUse[R], error) {
	if f.contextState() == states.ContextZombie {
		return objectUse[R]{}, errGone
	}
	o := f.objects.find(handle)
	if o == nil {
		return objectUse[R]{}, fmt.Errorf("handle %d: no such object: %w", handle, syscall.ENOENT)
	}
	res, ok := o.res.(R)
	if !ok {
		return objectUse[R]{}, fmt.Errorf("handle %d is of a %v: %w", handle, o.res.kind(), syscall.EINVAL)
	}
	if err := o.acquireSharedUse(); err != nil {
		return objectUse[R]{}, fmt.Errorf("%v with handle %d is being created or destroyed: %w", res.kind(), handle, err)
	}
	return objectUse[R]{o, res}, nil
}

func (s objectUse[R]) releaseUse() {
	if s.obj != nil {
		s.obj.users.Add(-1)
	}
}
