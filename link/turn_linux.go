package link

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/sched"
)

// stopTime is the time without a sign of life after which the holder of the receive token loses the token, if it is in
// Receive. The actual time is between stopTime and twice stopTime. Outside of Receive, the holder can only lack a
// processor, or be blocked by its work for another endpoint. There the limit is stopLooks times as long.
const (
	stopTime  = 10 * time.Millisecond
	stopLooks = 10
)

// After deferAfter claims in a row, a sender leaves the socket disarmed when it yields. The next claim will probably
// follow soon, and would disarm the socket again. deferTime limits the delay of a packet from another process in this
// state. A packet of another sender ends the claims in a row.
const (
	deferAfter = 64
	deferTime  = time.Millisecond
)

// turn is the receive token of an endpoint. Its holder, the receive thread or a sending thread ([Taker]), receives from
// the endpoint.
//
//	      enter, claim               leave, yield
//	free --------------> held -----------------------> free
//	                      |
//	                      | a time without a sign of life
//	                      v
//	                     free, with a new receiver; the old receiver is late
//
// The receive thread sleeps in epoll_wait(2). While a sender receives, the socket is not armed there, and packets do
// not wake the thread. As soon as the socket is armed again, remaining packets wake the thread. While senders claim
// again and again, the socket stays disarmed between the claims, for at most deferTime.
type turn struct {
	to    Receiver
	spin  time.Duration
	stop  time.Duration // stopTime
	epoll int

	mu       sync.Mutex
	receiver *receiver // used by the present or next holder
	holder   holder
	armed    bool
	inside   bool          // the holder is in Receive
	beats    uint64        // signs of life: changes of the holder, and begins and ends of calls of Receive
	seen     uint64        // beats at the last tick of timer
	looks    int           // number of ticks with these beats
	watched  bool          // timer is running
	timer    *time.Timer   // nil until the first use
	sender   chan struct{} // nil until Close; closed when no sender holds the token
	claims   int           // number of claims in a row
	deferred bool          // rearm is running
	rearm    *time.Timer   // nil until the first use
}

// holder is the kind of thread that holds the receive token.
type holder uint8

const (
	nobody holder = iota
	thread
	sender
)

// start starts the receive thread.
func (e *UDPEndpoint) start(to Receiver, spin time.Duration) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	t := &e.turn
	t.to, t.spin, t.stop, t.epoll, t.armed = to, max(spin, 0), e.opts.stop, fd, true
	t.receiver = newReceiver(e, to)
	if err := epollAdd(fd, e.fd); err != nil {
		unix.Close(fd)
		return err
	}
	go e.receive()
	return nil
}

// epollAdd makes packets for a socket wake the threads that wait for epoll.
func epollAdd(epoll, fd int) error {
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN,
		Fd: int32(fd)}); err != nil {
		return fmt.Errorf("wait for packets: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// receive runs the receive thread.
func (e *UDPEndpoint) receive() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sched.SetTimeSlice(sched.SleeperSlice)
	idle := sched.NewSpin(e.turn.spin)
	for fd := e.fd; e.users.Load() >= 0; fd = e.sleep(&idle) {
		if r := e.enterTurn(); r != nil && (!r.receive(fd) || !e.turn.yield(r)) {
			return // another thread receives
		}
	}
	close(e.done)
}

// receive receives from a socket that has packets. It reports false if the receiver has been replaced.
func (r *receiver) receive(fd int) bool {
	if fd != r.e.fd {
		return r.receiveGroup(fd)
	}
	return r.drain()
}

// sleep waits until there may be packets, and returns their socket. It spins before it sleeps.
func (e *UDPEndpoint) sleep(idle *sched.Spin) int {
	start := time.Now()
	spin := idle.Next()
	for spin > 0 && time.Since(start) < spin {
		if fd, ok := epollWait(e.turn.epoll, false); ok {
			idle.Waited(time.Since(start), true)
			return fd
		}
	}
	fd, ok := epollWait(e.turn.epoll, true)
	idle.Waited(time.Since(start), spin > 0)
	if !ok {
		return e.fd
	}
	return fd
}

// enterTurn gives the receive token to the receive thread. It returns nil if a sender holds the token. Packets that
// this sender leaves wake the receive thread.
func (e *UDPEndpoint) enterTurn() *receiver {
	t := &e.turn
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holder != nobody {
		return nil
	}
	t.claims = 0
	return t.give(e, thread)
}

// Claim implements [Taker.Claim].
func (e *UDPEndpoint) Claim() Turn {
	if !e.enter() {
		return nil
	}
	defer e.leave()
	t := &e.turn
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holder != nobody || t.sender != nil {
		t.claims = 0
		return nil
	}
	t.claims++
	t.arm(e, false)
	return t.give(e, sender)
}

// Expect implements [Taker.Expect].
func (e *UDPEndpoint) Expect() {
	if e.enter() {
		e.turn.expect()
		e.leave()
	}
}

// expect ends the claims in a row. The receive thread wakes for all packets, or as soon as a sender yields.
func (t *turn) expect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claims = 0
	if t.holder == nobody {
		t.arm(t.receiver.e, true)
	}
}

// rearmLate arms a socket that a sender has left disarmed. If a sender is receiving, this sender arms the socket when
// it yields.
func (e *UDPEndpoint) rearmLate() {
	t := &e.turn
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deferred = false
	if t.holder == nobody {
		t.arm(e, true)
	} else {
		t.claims = deferAfter - 1
	}
}

// defers reports whether a yielding sender leaves the socket disarmed.
//
//verbena:held mu
func (t *turn) defers(e *UDPEndpoint) bool {
	if t.claims < deferAfter || t.sender != nil {
		return false
	}
	if !t.deferred {
		t.deferred = true
		if t.rearm == nil {
			t.rearm = time.AfterFunc(e.opts.delay, e.rearmLate)
		} else {
			t.rearm.Reset(e.opts.delay)
		}
	}
	return true
}

// give gives the token to a thread of the given kind.
//
//verbena:held mu
func (t *turn) give(e *UDPEndpoint, to holder) *receiver {
	t.holder = to
	t.beats++
	if !t.watched {
		t.watched = true
		if t.timer == nil {
			t.timer = time.AfterFunc(t.stop, e.look)
		} else {
			t.timer.Reset(t.stop)
		}
	}
	return t.receiver
}

// arm sets whether packets wake the receive thread.
//
//verbena:held mu
func (t *turn) arm(e *UDPEndpoint, on bool) {
	if on == t.armed {
		return
	}
	t.armed = on
	v := unix.EpollEvent{Fd: int32(e.fd)}
	if on {
		v.Events = unix.EPOLLIN
	}
	_ = unix.EpollCtl(t.epoll, unix.EPOLL_CTL_MOD, e.fd, &v) // can only fail for an invalid descriptor
}

// alive records a sign of life of the holder, and whether the holder is in Receive. It reports false if the holder has
// lost the token.
func (t *turn) alive(r *receiver, inside bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receiver != r {
		return false
	}
	t.beats++
	t.inside = inside
	return true
}

// yield returns the token. It reports false if the holder had lost the token.
func (t *turn) yield(r *receiver) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receiver != r {
		return false
	}
	t.free(r.e)
	return true
}

// free frees the token.
//
//verbena:held mu
func (t *turn) free(e *UDPEndpoint) {
	was := t.holder
	t.holder, t.inside = nobody, false
	t.beats++
	if was != sender || !t.defers(e) {
		t.arm(e, true)
	}
	if t.sender != nil && was == sender {
		close(t.sender) // the last access: Close then continues
	}
}

// look frees the token if its holder has given no sign of life for too long; see stopTime. When its call of Receive
// returns, a late receive thread ends, and a late sender continues without the token. Until then the late thread costs
// its stack and buffers. The code that blocks such threads must limit their number.
func (e *UDPEndpoint) look() {
	t := &e.turn
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.beats != t.seen:
		t.seen, t.looks = t.beats, 1
	case t.holder == nobody:
		t.watched = false
		return
	case !t.inside && t.looks < stopLooks:
		t.looks++
	default:
		if t.holder == thread {
			go e.receive()
		}
		t.replace()
	}
	t.timer.Reset(t.stop)
}

// abandon takes the token from the holder of r, unless the holder has already lost it.
func (t *turn) abandon(r *receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receiver == r {
		t.replace()
	}
}

// replace frees the token and installs a new receiver.
//
//verbena:held mu
func (t *turn) replace() {
	e := t.receiver.e
	t.receiver.late.Store(true)
	t.receiver = newReceiver(e, t.to)
	t.claims = 0
	t.free(e)
}

// close ends all claims. The returned channel is closed as soon as no sender holds the token.
func (t *turn) close() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sender = make(chan struct{})
	if t.rearm != nil {
		t.rearm.Stop()
	}
	if t.holder == nobody {
		t.arm(t.receiver.e, true)
	}
	if t.holder != sender {
		close(t.sender)
	}
	return t.sender
}
