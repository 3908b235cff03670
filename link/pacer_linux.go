package link

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pacer calls a function when a time has come, as timeq.Runner does, but within microseconds: the timers of package time are
// late by up to a millisecond when the process is idle, since the poller of the runtime waits in milliseconds. While there is
// nothing to wait for it is a goroutine; a thread sleeps for a time.
type pacer struct {
	work func() time.Duration
	wake chan struct{}
	stop chan struct{}
	done chan struct{}
	once sync.Once

	asleep atomic.Bool   // the thread sleeps, or is about to
	late   time.Duration // by so much sleeps have been too long

	mu    sync.Mutex // for event to be closed
	event int        // an eventfd that ends the sleep; -1: there is none
}

// runnerOnly is from when on a sleep is left to package time, but for the last of it.
const runnerOnly = 5 * time.Millisecond

// maxLead bounds for how long the thread spins instead of sleeping: by what sleeps have been late.
const maxLead = 60 * time.Microsecond

func newPacer(work func() time.Duration) *pacer {
	p := &pacer{work: work, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), event: -1}
	go p.run()
	return p
}

// Wake has the function called soon. It does not sleep.
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

// Stop ends the goroutine, and waits until the function has returned. It may be called more than once, and may sleep.
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

// sleep returns when d is over, or after Wake.
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
				// The mean of what sleeps are late by, and a little.
				late := max(time.Since(due)+p.late, 0)
				p.late = min(p.late+(late+2*time.Microsecond-p.late)/8, maxLead)
			}
		}
		p.asleep.Store(false)
	}
	for len(p.wake) == 0 && time.Until(due) > 0 {
		// A few microseconds are too short for a sleep.
	}
}

// open makes the thread one of the pacer's own, whose sleeps are not prolonged, and the eventfd.
func (p *pacer) open() bool {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return false
	}
	runtime.LockOSThread() // until the goroutine ends, and the thread with it
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
