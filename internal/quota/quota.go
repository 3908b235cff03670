package quota

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
)

// ResourceKind is a kind of resource that a service counts.
type ResourceKind uint8

// The following constants are the kinds, in the order in which they are shown.
const (
	Sessions    ResourceKind = iota // programs under supervision
	Workers                         // threads that answer the calls of programs
	Connections                     // connections to the control socket
	Contexts                        // open device files
	PDs
	MRs
	MWs
	AHs
	CQs
	QPs
	SRQs
	XRCDs
	Multicast   // memberships of queue pairs in multicast groups
	CMIDs       // IDs of the connection manager, and their memberships in multicast groups
	Descriptors // descriptors that the service holds for completion channels, event files and queue files
	InFlight    // descriptors sent to programs and not received yet
	RingBytes   // shared memory of queues, in bytes
	BufferBytes // shared memory of buffers, in bytes
	Mappings    // mappings of shared memory into the service
	NumKinds
)

var resourceKinds = [NumKinds]struct {
	name  string
	errno syscall.Errno // errno of a refusal
}{
	Sessions:    {"sessions", syscall.EAGAIN},
	Workers:     {"workers", syscall.EAGAIN},
	Connections: {"connections", syscall.EAGAIN},
	Contexts:    {"contexts", syscall.ENOMEM},
	PDs:         {"pds", syscall.ENOMEM},
	MRs:         {"mrs", syscall.ENOMEM},
	MWs:         {"mws", syscall.ENOMEM},
	AHs:         {"ahs", syscall.ENOMEM},
	CQs:         {"cqs", syscall.ENOMEM},
	QPs:         {"qps", syscall.ENOMEM},
	SRQs:        {"srqs", syscall.ENOMEM},
	XRCDs:       {"xrcds", syscall.ENOMEM},
	Multicast:   {"multicast", syscall.ENOMEM},
	CMIDs:       {"cm-ids", syscall.ENOMEM},
	Descriptors: {"descriptors", syscall.EMFILE},
	InFlight:    {"descriptors-in-flight", syscall.EAGAIN},
	RingBytes:   {"ring-bytes", syscall.ENOMEM},
	BufferBytes: {"buffer-bytes", syscall.ENOMEM},
	Mappings:    {"mappings", syscall.ENOMEM},
}

// String returns the name of a kind in the configuration and in tables, such as "qps".
func (k ResourceKind) String() string {
	if k < NumKinds {
		return resourceKinds[k].name
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// A user who holds more than 1/smallShare of the per-user limit gets no part of the last 1/reserveShare of the
// total. That part is reserved for users who hold little.
const (
	reserveShare = 4
	smallShare   = 4
)

// LimitError is a refusal of a request beyond a limit. Error wraps the errno for the program. The errno is ENOMEM for
// objects, EMFILE for descriptors, and EAGAIN for sessions, workers, connections and descriptors in flight.
type LimitError struct {
	Kind   ResourceKind
	User   ID
	Asked  uint64
	Held   uint64 // amount held by the user or, if Shared, by all users
	Limit  uint64
	Shared bool // the limit of all users together is reached
}

func (e *LimitError) Error() string {
	if e.Shared {
		return fmt.Sprintf("all users hold %d %v, user %v requests %d more, and the service's limit is %d (verbena serve --limit %[2]v=PER-USER/TOTAL): %[6]v",
			e.Held, e.Kind, e.User, e.Asked, e.Limit, e.Unwrap())
	}
	return fmt.Sprintf("user %v holds %d %v and requests %d more, and the limit is %d (verbena serve --limit %[3]v=PER-USER/TOTAL): %[6]v",
		e.User, e.Held, e.Kind, e.Asked, e.Limit, e.Unwrap())
}

// Unwrap returns the errno.
func (e *LimitError) Unwrap() error { return resourceKinds[e.Kind].errno }

// Ledger counts the resources of users. Ledger is safe for concurrent use, and none of its methods sleeps.
type Ledger struct {
	limits  Limits
	refused func(*LimitError) // may be nil
	short   func(*User)       // may be nil

	mu    sync.Mutex
	total [NumKinds]uint64
	users map[ID]*User // all users requested so far
}

// New returns a ledger in which no user holds any resources.
func New(limits Limits) *Ledger {
	return &Ledger{limits: limits, users: map[ID]*User{}}
}

// OnRefusal sets a function that is called for each refusal. The function must not sleep, and must be set before
// the ledger is used.
func (l *Ledger) OnRefusal(f func(*LimitError)) { l.refused = f }

// OnShortage sets a function that is called before a refusal. The function may end charges for resources that the user
// no longer holds. Afterwards the ledger checks the limits again. The function must not sleep, and must be set
// before the ledger is used.
func (l *Ledger) OnShortage(f func(*User)) { l.short = f }

// ID identifies a user by a user ID and, if the same ID means different users, by a container.
type ID struct {
	UID       int
	Container uint64 // inode of a namespace (see package principal), or 0 for none
}

// String returns the user ID, and the container if there is one. Examples are "0" and "0 of container 4026532201".
func (id ID) String() string {
	if id.Container == 0 {
		return strconv.Itoa(id.UID)
	}
	return fmt.Sprintf("%d of container %d", id.UID, id.Container)
}

// User counts the resources of one user. The nil User counts no resources and refuses no requests.
type User struct {
	ledger *Ledger
	id     ID
	held   [NumKinds]uint64 // guarded by ledger.mu
}

// User returns the account of a user ID outside of containers; see Account.
func (l *Ledger) User(uid int) *User { return l.Account(ID{UID: uid}) }

// Account returns the account of a user, which is always the same value. The nil Ledger returns the nil User.
func (l *Ledger) Account(id ID) *User {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[id]
	if u == nil {
		u = &User{ledger: l, id: id}
		l.users[id] = u
	}
	return u
}

// ID returns the ID of the user. The nil User has the user ID -1.
func (u *User) ID() ID {
	if u == nil {
		return AllUsers
	}
	return u.id
}

// AllUsers represents all users together.
var AllUsers = ID{UID: -1}

// Charge charges n of a kind to the user. On failure Charge returns an *Error and charges nothing.
func (u *User) Charge(k ResourceKind, n uint64) error {
	if u == nil || n == 0 {
		return nil
	}
	err := u.charge(k, n)
	if err != nil && u.ledger.short != nil {
		u.ledger.short(u)
		err = u.charge(k, n)
	}
	if err != nil {
		if u.ledger.refused != nil {
			u.ledger.refused(err)
		}
		return err
	}
	return nil
}

func (u *User) charge(k ResourceKind, n uint64) *LimitError {
	l := u.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	held, total, limit := u.held[k], l.total[k], l.limits[k]
	if p := limit.PerUser; p != 0 && (n > p || held > p-n) {
		return &LimitError{Kind: k, User: u.id, Asked: n, Held: held, Limit: p}
	}
	if t := limit.Total; t != 0 {
		if p := limit.PerUser; p == 0 || held+n > p/smallShare {
			t -= t / reserveShare
		}
		if n > t || total > t-n {
			return &LimitError{Kind: k, User: u.id, Asked: n, Held: total, Limit: t, Shared: true}
		}
	}
	u.held[k] += n
	l.total[k] += n
	return nil
}

// Release ends a charge made by Charge.
func (u *User) Release(k ResourceKind, n uint64) {
	if u == nil || n == 0 {
		return
	}
	l := u.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if u.held[k] < n {
		panic(fmt.Sprintf("quota: user %v releases %d %v but holds %d", u.id, n, k, u.held[k]))
	}
	u.held[k] -= n
	l.total[k] -= n
}

// Held returns the amount of a kind that the user holds.
func (u *User) Held(k ResourceKind) uint64 {
	if u == nil {
		return 0
	}
	u.ledger.mu.Lock()
	defer u.ledger.mu.Unlock()
	return u.held[k]
}

// Usage lists the resources of one user, or of all users together.
type Usage struct {
	User ID // All for all users
	Held [NumKinds]uint64
}

// Usage lists the resources of each user who holds any, by user ID, and the resources of all users together.
func (l *Ledger) Usage() (users []Usage, total Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, u := range l.users {
		if u.held != ([NumKinds]uint64{}) {
			users = append(users, Usage{User: id, Held: u.held})
		}
	}
	slices.SortFunc(users, func(a, b Usage) int {
		return cmp.Or(a.User.UID-b.User.UID, cmp.Compare(a.User.Container, b.User.Container))
	})
	return users, Usage{User: AllUsers, Held: l.total}
}

// Limits returns the limits of the ledger.
func (l *Ledger) Limits() Limits { return l.limits }
