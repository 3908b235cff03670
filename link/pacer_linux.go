package link

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pacer calls a function at given times, like timeq.Runner, but within microseconds of the time. The timers of package
// time are up to a millisecond late in an idle process: the poller of the runtime waits in milliseconds. While no call
// is pending, the pacer is a goroutine. For the last milliseconds of a wait, a thread sleeps.
type pacer struct {
	work func() time.Duration
	wake chan struct{}
	stop chan struct{}
	done chan struct{}
	once sync.Once

	asleep atomic.Bool   // the thread sleeps, or is about to
	late   time.Duration // mean oversleep plus a margin, at most maxLead

	mu    sync.Mutex // protects event from a close during Wake
	event int        // eventfd that ends the sleep; -1: not open
}

// runnerOnly is the longest wait without a timer of package time. For a longer wait, the timer fires runnerOnly/2
// early.
const runnerOnly = 5 * time.Millisecond

// maxLead limits the time for which the thread spins at the end of a sleep. The time is otherwise the mean oversleep.
const maxLead = 60 * time.Microsecond

func newPacer(work func() time.Duration) *pacer {
	p := &pacer{work: work, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), event: -1}
	go p.run()
	return p
}

// Wake makes the pacer call the function soon. It does not sleep.
func (p *pacer) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
	if p.asleep.Load() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.event >= 0 {
			var one [8]byte
			binary.NativeEndian.PutUint64(one[:], 1)
			_, _ = unix.Write(p.event, one[:]) //verbena:allow nosleep an eventfd takes it at once
		}
	}
}

// Stop ends the goroutine and waits until the function has returned. It may be called more than once, and may sleep.
func (p *pacer) Stop() {
	p.once.Do(func() { close(p.stop) })
	p.Wake()
	<-p.done
}

func (p *pacer) run() {
	defer close(p.done)
	defer p.close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timer.Stop()
	next := time.Duration(0)
	for {
		switch {
		case next == 0 || next > runnerOnly:
			if next > 0 {
				timer.Reset(next - runnerOnly/2)
			}
			select {
			case <-p.stop:
				return
			case <-p.wake:
			case <-timer.C:
			}
			timer.Stop()
		default:
			p.sleep(next)
			select {
			case <-p.stop:
				return
			case <-p.wake:
			default:
			}
		}
		next = p.work()
	}
}

// sleep returns after d, or after a call of Wake.
func (p *pacer) sleep(d time.Duration) {
	if p.event < 0 && !p.open() {
		time.Sleep(d)
		return
	}
	due := time.Now().Add(d)
	if d > p.late {
		p.asleep.Store(true)
		if len(p.wake) == 0 {
			t := unix.NsecToTimespec(int64(d - p.late))
			fds := []unix.PollFd{{Fd: int32(p.event), Events: unix.POLLIN}}
			n, _ := unix.Ppoll(fds, &t, nil)
			if n > 0 {
				var b [8]byte
				_, _ = unix.Read(p.event, b[:])
			} else {
				// The new value is the mean oversleep plus a margin.
				late := max(time.Since(due)+p.late, 0)
				p.late = min(p.late+(late+2*time.Microsecond-p.late)/8, maxLead)
			}
		}
		p.asleep.Store(false)
	}
	for len(p.wake) == 0 && time.Until(due) > 0 {
		// The remaining microseconds are too short for a sleep.
	}
}

// open opens the eventfd, and locks the goroutine to a thread with the least timer slack. It reports whether it
// succeeded.
func (p *pacer) open() bool {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return false
	}
	runtime.LockOSThread() // until the end of the goroutine, which ends the thread
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.event = fd
	return true
}

func (p *pacer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.event >= 0 {
		unix.Close(p.event) //verbena:allow nosleep the close of an eventfd does not wait
		p.event = -1
	}
}
