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

// stopTime is how long a call of Receive may take, and up to twice that, before the turn is another's. Outside of
// Receive who has the turn can only lack a processor, or be stopped by what it does for another endpoint: that may take
// stopLooks times as long.
const (
	stopTime  = 10 * time.Millisecond
	stopLooks = 10
)

// After deferAfter claims in a row, a sender leaves the socket disarmed when it yields. The next claim is likely to
// follow soon, and would disarm the socket again. deferTime limits the delay of a packet that another process sends
// meanwhile. A packet of another sender ends the claims in a row.
const (
	deferAfter = 64
	deferTime  = time.Millisecond
)

// turn says who receives from an endpoint: its receive thread, or a thread that sends to it ([Taker]).
//
//	      enter, claim               leave, yield
//	free --------------> had ------------------------> free
//	                      |
//	                      | a time without a sign of life
//	                      v
//	                     free, with a new receiver; who had it finds itself late
//
// The receive thread sleeps in epoll_wait(2). While a sender receives, the socket is not armed there, and packets do
// not wake the thread. When it is armed again, the remaining packets do. While senders claim again and again, the
// socket stays disarmed between them, for deferTime at most.
type turn struct {
	to    Receiver
	spin  time.Duration
	stop  time.Duration // stopTime
	epoll int

	mu       sync.Mutex
	receiver *receiver // of who has the turn now, or next
	holder   holder
	armed    bool
	inside   bool          // who has it is in Receive
	beats    uint64        // signs of life: changes of the holder, and begins and ends of calls of Receive
	seen     uint64        // beats when the timer last looked
	looks    int           // times that it has seen these
	watched  bool          // the timer is going to look
	timer    *time.Timer   // nil: there was none yet
	sender   chan struct{} // not nil: the endpoint closes. Closed when no sender has the turn
	claims   int           // in a row
	deferred bool          // rearm is going to run
	rearm    *time.Timer   // nil: there was none yet
}

// holder is who has the turn.
type holder uint8

const (
	nobody holder = iota
	thread
	sender
)

// start begins to receive.
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

// epollAdd makes packets for a socket wake who waits for epoll.
func epollAdd(epoll, fd int) error {
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN,
		Fd: int32(fd)}); err != nil {
		return fmt.Errorf("wait for packets: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// receive is the receive thread.
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

// receive receives from a socket that has packets. It reports false when the receiver was given up.
func (r *receiver) receive(fd int) bool {
	if fd != r.e.fd {
		return r.receiveGroup(fd)
	}
	return r.drain()
}

// sleep returns when there may be something to receive, at best without sleeping, and the socket that has it.
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

// enterTurn gives the receive thread the turn; nil: a sender has it, and what it leaves wakes the thread.
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

// Claim is [Taker.Claim].
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

// Expect is [Taker.Expect].
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

// rearmLate arms a socket that a sender has left disarmed. A sender that receives at the moment does it when it yields.
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

// defers reports whether a sender leaves the socket disarmed.
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

// give gives the turn to who has asked for it.
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

// arm says whether what arrives wakes the receive thread.
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
	_ = unix.EpollCtl(t.epoll, unix.EPOLL_CTL_MOD, e.fd, &v) // which can only fail for descriptors that are none
}

// alive is a sign of life of who has the turn, and says whether it is in Receive now. It reports false if the turn has
// been given to another meanwhile.
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

// yield takes the turn back. It reports false if it has been given to another meanwhile.
func (t *turn) yield(r *receiver) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receiver != r {
		return false
	}
	t.free(r.e)
	return true
}

// free makes the turn nobody's.
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
		close(t.sender) // the last of all: Close goes on then
	}
}

// look gives the turn to another if who has it has given no sign of life since the last look. A late thread ends, or
// goes on without the turn, when its call of Receive returns; until then it costs its stack and buffers. That there are
// not too many is the business of whoever stops them.
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

// abandon takes the turn from who has it, unless that has happened.
func (t *turn) abandon(r *receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receiver == r {
		t.replace()
	}
}

// replace makes the turn nobody's, with a new receiver.
//
//verbena:held mu
func (t *turn) replace() {
	e := t.receiver.e
	t.receiver.late.Store(true)
	t.receiver = newReceiver(e, t.to)
	t.claims = 0
	t.free(e)
}

// close ends all claims. What it returns is closed when no sender has the turn.
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
