//go:build e2e

package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// messageCalls are the system calls that a service makes for messages. The others are those of Go's runtime.
var messageCalls = []string{"ioctl", "poll", "ppoll", "epoll_ctl", "sendmsg", "sendmmsg", "recvmmsg", "preadv",
	"pwritev", "pread64", "process_vm_readv", "process_vm_writev"}

// callCounter counts the system calls of a process.
type callCounter []int // descriptors of events

// countCalls starts to count the message calls of all threads of a process, and of the threads that they start.
func countCalls(t *testing.T, pid int) (c callCounter) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range c {
			unix.Close(fd)
		}
	})
	for _, call := range messageCalls {
		id, err := os.ReadFile("/sys/kernel/tracing/events/syscalls/sys_enter_" + call + "/id")
		if err != nil {
			t.Skipf("missing: tracepoints of system calls: %v", err)
		}
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Bits: unix.PerfBitInherit}
		attr.Config, _ = strconv.ParseUint(strings.TrimSpace(string(id)), 10, 64)
		for _, d := range threads {
			tid, _ := strconv.Atoi(d.Name())
			fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			switch err {
			case nil:
				c = append(c, fd)
			case unix.ESRCH: // the thread has ended
			default:
				t.Skipf("missing: perf_event_open: %v", err)
			}
		}
	}
	return c
}

// total returns the number of calls since the start.
func (c callCounter) total(t *testing.T) (n uint64) {
	t.Helper()
	for _, fd := range c {
		var b [8]byte
		if _, err := unix.Read(fd, b[:]); err != nil {
			t.Fatal(err)
		}
		n += binary.NativeEndian.Uint64(b[:])
	}
	return n
}

// TestCallsPerMessage counts the system calls of a service for a message. A change that adds one has to change this
// table. On a busy machine some messages need more calls, so the least of some runs counts.
func TestCallsPerMessage(t *testing.T) {
	needRoot(t)
	needProgram(t, "perftest", "ib_send_lat", "ib_write_lat", "ib_write_bw")
	if doorbellMode != "" {
		t.Skip("for trapped doorbells")
	}
	const few, attempts = 100, 10
	for _, tt := range []struct {
		name, tool string
		size, n    int
		user       int // in testUsers
		flags      []string
		most       float64
	}{
		// NOTIF_RECV, preadv, pwritev, NOTIF_SEND
		{"SEND of 64 bytes, shortcut", "ib_send_lat", 64, 5000, 1, nil, 4.5},
		// and sendmsg and recvmmsg of the message and of the acknowledgement
		{"SEND of 64 bytes, wire", "ib_send_lat", 64, 5000, 1, []string{"--wire"}, 8.9},
		// two trains: sendmmsg
		{"WRITE of 64 KB, wire", "ib_write_lat", 64 << 10, 1000, 1, []string{"--wire"}, 9.2},
		// 17 trains, and three calls for each read of up to four of them
		{"WRITE of 1 MB, wire, root's service", "ib_write_bw", 1 << 20, 300, 0, []string{"--wire"}, 60},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := startService(t, testUsers()[tt.user], "", append([]string{"--link", "rxe0=" + unusedAddr(), "--doorbells",
				"trapped"}, tt.flags...)...)
			run := func(n int) (calls uint64) {
				c := countCalls(t, w.serve.Process.Pid)
				args := []string{"-x", "1", "-F", "-m", "4096", "-d", "rxe0", "-s", strconv.Itoa(tt.size), "-n",
					strconv.Itoa(n)}
				if err := (&programPair{server: w, client: w, program: tt.tool, serverArgs: args, clArgs: args}).run(); err != nil {
					t.Fatal(err)
				}
				return c.total(t)
			}
			least := 0.0
			for range attempts {
				base := run(few)
				messages := tt.n - few
				if strings.HasSuffix(tt.tool, "_lat") {
					messages *= 2 // both programs send
				}
				if got := (float64(run(tt.n)) - float64(base)) / float64(messages); least == 0 || got < least {
					least = got
				}
				if least <= tt.most {
					break
				}
			}
			t.Logf("calls per message: %.2f", least)
			if least > tt.most {
				t.Errorf("calls per message: got %.2f, want at most %.1f", least, tt.most)
			}
		})
	}
}
