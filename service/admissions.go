package service

import (
	"net"
	"os"
	"sync"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/quota"
)

// admissions holds accepted connections until their clients are identified. admissions identifies the clients of a
// user one at a time, at a limited rate. A user who connects in a loop therefore costs the accepting thread only
// one accept(2) for each connection.
//
// The kernel reports the user ID of a client at once. The account of a user ID is known only after one of its
// clients was identified. Before the first identification, few clients of the ID may wait; afterwards its clients
// are queued for the account. For root and the service's own user, add first looks up the pid namespace, so that a
// container with user ID 0 cannot fill the queue of managers.
type admissions struct {
	mu       sync.Mutex
	of       map[quota.ID]*admissionQueue
	accounts map[quota.ID]quota.ID // accounts of user IDs, where the account has another ID
	total    int                   // number of waiting clients
}

// admissionQueue is the queue of one user's clients.
type admissionQueue struct {
	waiting []*net.UnixConn
	known   bool      // at least one client of the ID was identified
	busy    bool      // a goroutine is identifying clients of this queue
	tokens  float64   // number of clients that can be identified without a pause
	at      time.Time // time of the last change of tokens
}

const (
	// maxAdmissions limits the number of waiting clients of one user; the service disconnects further clients.
	maxAdmissions = 256
	// maxUnknown limits the number of waiting clients of an ID without an identified client.
	maxUnknown = 16
	// maxAllAdmissions limits the number of waiting clients of all users.
	maxAllAdmissions = 2048
	// maxQueues limits the number of remembered users and subordinate IDs.
	maxQueues = 1 << 16
	// admissionRate is the number of clients identified per second for one user after a burst.
	admissionRate  = 500
	admissionBurst = 1000
	// surplusPause is the time that the accepting thread pauses after a client of a full queue. The thread sleeps
	// for most of that time.
	surplusPause = 200 * time.Microsecond
)

// add queues a client, or disconnects the client and returns false. add does not sleep.
func (a *admissions) add(by *acceptor, c *net.UnixConn) bool {
	pid, uid, err := ctl.PeerCredentials(c)
	if err != nil {
		by.log.Warn("client", "err", err)
		go c.Close()
		return false
	}
	id := quota.ID{UID: uid}
	privileged := uid == 0 || uid == os.Geteuid()
	closing := by.rights.QueueOf(by.quota.User(uid))
	if privileged && pid != 0 {
		if id.Container, err = by.authority.PIDNamespace(pid); err != nil { // the client's process has ended
			go closing.DrainAndClose(c)
			return false
		}
	}
	privileged = privileged && id.Container == 0 // a client that may be a manager: other users must not fill its queue
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.getOrAddQueue(id)
	most := maxUnknown
	if q.known {
		most = maxAdmissions
	}
	if privileged {
		most = maxAdmissions
	}
	if len(q.waiting) >= most || a.total >= maxAllAdmissions && !privileged {
		go closing.DrainAndClose(c)
		return false
	}
	q.waiting = append(q.waiting, c)
	a.total++
	if !q.busy {
		q.busy = true
		go a.serveQueue(by, id, q)
	}
	return true
}

// getOrAddQueue returns the queue of a user. getOrAddQueue removes idle users if there are too many.
//
//verbena:held mu
func (a *admissions) getOrAddQueue(id quota.ID) *admissionQueue {
	if account, ok := a.accounts[id]; ok {
		id = account
	}
	if q := a.of[id]; q != nil {
		return q
	}
	if a.of == nil || len(a.of) >= maxQueues {
		busy := map[quota.ID]*admissionQueue{}
		for id, q := range a.of {
			if q.busy {
				busy[id] = q
			}
		}
		a.of = busy
	}
	q := &admissionQueue{tokens: admissionBurst, at: time.Now()}
	a.of[id] = q
	return q
}

// recordAccount records the account of a user ID.
func (a *admissions) recordAccount(id, account quota.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if account != id {
		if a.accounts == nil || len(a.accounts) >= maxQueues {
			a.accounts = map[quota.ID]quota.ID{}
		}
		a.accounts[id] = account // the queue of the ID remains until its waiting clients were served
	}
	a.getOrAddQueue(account).known = true
}

// serveQueue serves the clients of a queue until the queue is empty.
func (a *admissions) serveQueue(by *acceptor, id quota.ID, q *admissionQueue) {
	for {
		c, pause := a.dequeue(q)
		if c == nil {
			return
		}
		time.Sleep(pause)
		if account, ok := by.admitClient(c); ok {
			a.recordAccount(id, account)
		}
	}
}

// dequeue removes a client from a queue, and returns the time to wait before the client is served. dequeue returns nil
// if the queue is empty.
func (a *admissions) dequeue(q *admissionQueue) (c *net.UnixConn, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(q.waiting) == 0 {
		q.waiting, q.busy = nil, false
		return nil, 0
	}
	c, q.waiting = q.waiting[0], q.waiting[1:]
	a.total--
	now := time.Now()
	q.tokens = min(q.tokens+now.Sub(q.at).Seconds()*admissionRate, admissionBurst) - 1
	q.at = now
	if q.tokens < 0 {
		pause = time.Duration(-q.tokens / admissionRate * float64(time.Second))
	}
	return c, pause
}
