package ibtest

import (
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
)

// callBeforePostSend returns a driver that calls f before each post send.
func callBeforePostSend(prepare func(t testing.TB) (f func())) func(d *wrongDriver) {
	return func(d *wrongDriver) {
		f := sync.OnceValue(func() func() { return prepare(d.t) })
		d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
			f()()
			return q.QP.PostSend(wrs)
		}
	}
}

// sleepFor sleeps, in real or virtual time. It is the defect of drivers and consumers that must not sleep, and the
// delay of their threads.
func sleepFor(d time.Duration) { time.Sleep(d) }

func nanosleep(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	syscall.Nanosleep(&ts, nil)
}

// sleepDefects sleep too briefly for a single inspection, or in ways that do not look like sleep.
var sleepDefects = []driverDefect{
	{
		defect: "sleeps for 100 µs in post send",
		break_: callBeforePostSend(func(testing.TB) func() { return func() { sleepFor(100 * time.Microsecond) } }),
		says:   "rule sleep-in-method",
	},
	{
		defect: "sleeps for 100 µs in post send by a system call",
		break_: callBeforePostSend(func(testing.TB) func() { return func() { nanosleep(100 * time.Microsecond) } }),
		by:     "Sleep/ContextSwitches", says: "QP.PostSend gave up the processor",
	},
	{
		defect: "sleeps for 5 ms in post send by a system call",
		break_: callBeforePostSend(func(testing.TB) func() { return func() { nanosleep(5 * time.Millisecond) } }),
		by:     "Sleep/ContextSwitches", says: "QP.PostSend gave up the processor",
	},
	{
		defect: "sleeps for 20 µs in one post send of 30",
		break_: callBeforePostSend(func(testing.TB) func() {
			var n atomic.Int32
			return func() {
				if n.Add(1)%30 == 0 {
					sleepFor(20 * time.Microsecond)
				}
			}
		}),
		opts: func(func() *wrongDriver) []Option { return []Option{Bubble()} },
		says: "rule sleep-in-method",
	},
	{
		defect: "writes a file in post send, and waits for the disk",
		break_: callBeforePostSend(func(t testing.TB) func() {
			f, err := os.CreateTemp(".", "ibtest") // not in /tmp, which may be in memory
			if err != nil {
				t.Fatal(err)
			}
			os.Remove(f.Name())
			t.Cleanup(func() { f.Close() })
			return func() {
				f.WriteAt([]byte("log"), 0)
				f.Sync()
			}
		}),
		by: "Sleep/ContextSwitches", says: "QP.PostSend gave up the processor", sooner: "rule sleep-in-method", // a slow disk
	},
	{
		defect: "asks a server in post send, and waits for the answer",
		break_: callBeforePostSend(func(t testing.TB) func() {
			a, b := net.Pipe()
			t.Cleanup(func() { a.Close(); b.Close() })
			go func() {
				var x [1]byte
				for {
					if _, err := b.Read(x[:]); err != nil {
						return
					}
					b.Write(x[:])
				}
			}()
			return func() {
				var x [1]byte
				a.Write(x[:])
				a.Read(x[:])
			}
		}),
		says: "rule sleep-in-method",
	},
	{
		defect: "spins for 2 ms in post send, waiting for its hardware",
		break_: callBeforePostSend(func(testing.TB) func() {
			return func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				for end := threadCPUTime() + 2*time.Millisecond; threadCPUTime() < end; { // independent of the load of the machine
				}
			}
		}),
		by: "Sleep/Spin", says: "half of the calls of QP.PostSend",
	},
	{
		defect: "sleeps for 20 ms in modify with a lock of post send",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				d.mu.Lock()
				defer d.mu.Unlock()
				if m&ib.QPAttrState != 0 && a.State == ib.QPRTS {
					sleepFor(20 * time.Millisecond)
				}
				return q.QP.Modify(a, m, nil)
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				return q.QP.PostSend(wrs)
			}
		},
		by: "Sleep/LockHolders", says: "waits for a lock, while QP.Modify sleeps",
	},
}
