package explain

import (
	"container/list"
	"time"

	"verbena/internal/quota"
)

// userCauses are the causes and queue pairs of a user.
type userCauses struct {
	causes  []*entry // a ring once it is full
	next    int      // index of the oldest cause in a full ring
	latest  time.Time
	refused *entry     // latest refused call
	unready []*qpFacts // queue pairs with an unready.id

	// The following lists are in the order in which their elements were added.
	qps    list.List       // *qpFacts of queue pairs that exist
	gone   fifo[*qpFacts]  // destroyed ones that had begun to receive
	unused fifo[*qpFacts]  // destroyed ones that never had
	keys   fifo[regionKey] // keys of ended
	ended  map[regionKey]endedKey
}

// past returns the number of the user's destroyed queue pairs and ended keys.
func (u *userCauses) past() int { return u.gone.len() + u.unused.len() + u.keys.len() }

// fifo is a queue.
type fifo[T any] struct {
	items []T
	head  int // index of the oldest; the items before it are zero
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) push(x T) {
	if len(f.items) == cap(f.items) && f.head > len(f.items)/2 {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, x)
}

// pop removes the oldest item. The queue must not be empty.
func (f *fifo[T]) pop() T {
	var zero T
	x := f.items[f.head]
	f.items[f.head] = zero
	f.head++
	return x
}

// retire moves a destroyed queue pair from the existing ones to the past ones.
//
//verbena:held mu
func (r *Recorder) retire(q *qpFacts) {
	if q.elem == nil {
		return
	}
	u := r.user(q.program.User)
	u.qps.Remove(q.elem)
	q.elem = nil
	if q.starts > 0 {
		u.gone.push(q)
	} else {
		u.unused.push(q)
	}
	r.past++
	r.limitPast(u)
}

// limitPast discards the oldest destroyed queue pairs and ended keys beyond the limits. u is the user who got one more.
//
//verbena:held mu
func (r *Recorder) limitPast(u *userCauses) {
	switch l := &r.cfg.Limits; {
	case u.gone.len() > l.Destroyed:
		r.forgetDestroyed(&u.gone)
	case u.unused.len() > max(1, l.Destroyed/4):
		r.forgetDestroyed(&u.unused)
	case u.keys.len() > l.Keys:
		r.forgetKey(u)
	}
	for r.past > r.cfg.Limits.Total {
		most := u
		for _, x := range r.users {
			if x.past() > most.past() {
				most = x
			}
		}
		switch n := most.keys.len(); {
		case most.unused.len() > 0:
			r.forgetDestroyed(&most.unused)
		case n > most.gone.len():
			r.forgetKey(most)
		default:
			r.forgetDestroyed(&most.gone)
		}
	}
}

//verbena:held mu
func (r *Recorder) forgetDestroyed(f *fifo[*qpFacts]) {
	r.forgetQP(f.pop())
	r.past--
}

//verbena:held mu
func (r *Recorder) forgetKey(u *userCauses) {
	delete(u.ended, u.keys.pop())
	r.past--
}

// user returns the causes of a user, which it creates.
//
//verbena:held mu
func (r *Recorder) user(id quota.ID) *userCauses {
	u := r.users[id]
	if u == nil {
		if len(r.users) >= r.cfg.Limits.Users {
			r.forgetUser()
		}
		u = &userCauses{}
		r.users[id] = u
	}
	return u
}

// forgetUser discards the facts of the user whose latest cause is the oldest.
//
//verbena:held mu
func (r *Recorder) forgetUser() {
	var oldest quota.ID
	var found *userCauses
	for id, u := range r.users {
		if found == nil || u.latest.Before(found.latest) {
			oldest, found = id, u
		}
	}
	for e := found.qps.Front(); e != nil; e = e.Next() {
		r.forgetQP(e.Value.(*qpFacts))
	}
	for _, f := range []*fifo[*qpFacts]{&found.gone, &found.unused} {
		for f.len() > 0 {
			r.forgetDestroyed(f)
		}
	}
	r.past -= found.keys.len()
	delete(r.users, oldest)
}

// forgetQP discards the facts of a queue pair. Its number may belong to a later queue pair, also of another user.
//
//verbena:held mu
func (r *Recorder) forgetQP(q *qpFacts) {
	q.elem = nil
	if k := (qpKey{q.ref.Device, q.ref.Num}); r.qps[k] == q {
		delete(r.qps, k)
	}
}
