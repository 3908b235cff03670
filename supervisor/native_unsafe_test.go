package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/uverbs"
)

// mapAsLibrary maps a file with the name of a library, which simulates a program linked with that library.
func mapAsLibrary(dir, name string) {
	path := filepath.Join(dir, name)
	must(0, os.WriteFile(path, make([]byte, 4096), 0o644))
	f := must(os.Open(path))
	must(unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE))
	f.Close()
}

const nativeLibrary = "libibverbs.so.1.14.44.0"

// isNativeFD reports whether the number of a descriptor is native, which means that its doorbells are not trapped.
func isNativeFD(fd int) bool {
	first, end := nativeFDRange()
	return first <= fd && fd < end
}

// nativeFDRange returns the range of native numbers. It must run before the program changes its limit.
var nativeFDRange = sync.OnceValues(func() (first, end int) {
	var limit unix.Rlimit
	must(0, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	n := commandFDsForHardLimit(limit.Max).native
	return int(n.first), int(n.end)
})

// queuePoster posts to the queues of a fake file.
type queuePoster struct {
	fd     int
	posted *atomic.Uint32
	seen   *atomic.Uint32
}

func newPoster(fd int) queuePoster {
	mem := must(unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	return queuePoster{fd, (*atomic.Uint32)(unsafe.Pointer(&mem[16])), (*atomic.Uint32)(unsafe.Pointer(&mem[8]))}
}

// postAndWait posts a request, rings the doorbell, and waits until the post was seen.
func (p queuePoster) postAndWait() {
	n := p.posted.Add(1)
	size, err := ringDoorbell(p.fd)
	panicUnless(size == 32 && err == nil, "doorbell: %d, %v", size, err)
	p.awaitPostSeen(n)
}

func (p queuePoster) awaitPostSeen(n uint32) {
	panicUnless(testutil.PollUntil(func() bool { return p.seen.Load() == n }), "post %d: got no poll of it, want one", n)
}

// runOnOtherThread calls a function on a new thread other than the main thread.
func runOnOtherThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			runOnOtherThread(f)
			return
		}
		f()
	}()
	<-done
}

func programNativeDoorbells(args []string) {
	dir := args[1]
	switch what := args[0]; what {
	case "rings":
		mapAsLibrary(dir, nativeLibrary)
		fd := openDevice()
		panicUnless(isNativeFD(fd), "descriptor %d: got a trapped number, want a native one", fd)
		p := newPoster(fd)
		for i := range 200 {
			p.postAndWait()
			if i%10 == 0 {
				time.Sleep(2 * time.Millisecond) // long enough for the polling thread to sleep
			}
		}
		// The supervisor traps the doorbell of a duplicate. Other files with native numbers behave normally.
		d := must(unix.Dup(fd))
		panicUnless(!isNativeFD(d), "duplicate: got the native number %d, want another one", d)
		before := p.seen.Load()
		n, err := ringDoorbell(d)
		panicUnless(n == 32 && err == nil && p.seen.Load() == before+1,
			"doorbell by a duplicate: got %d and error %v, want 32 bytes and one doorbell", n, err)
		first, end := nativeFDRange()
		d = must(unix.FcntlInt(uintptr(fd), unix.F_DUPFD, first+5))
		panicUnless(d >= end, "duplicate from %d on: got number %d, want one beyond the native range", first+5, d)
		r, w, err := os.Pipe()
		panicUnless(err == nil, "pipe: %v", err)
		must(0, unix.Dup3(int(w.Fd()), first, unix.O_CLOEXEC))
		must(unix.Write(first, []byte("x")))
		var b [1]byte
		must(r.Read(b[:]))
		var st unix.Stat_t
		must(0, unix.Fstat(fd, &st))
		checkCharDevice(&st)
	case "opens": // opens the device with several libraries and in a given access mode
		how := must(strconv.Atoi(args[2]))
		for _, name := range args[3:] {
			if size, ok := strings.CutPrefix(name, "limit="); ok {
				n := must(strconv.ParseUint(size, 10, 64))
				must(0, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: n}))
				continue
			}
			first, end := nativeFDRange()
			if name == "no number" {
				for i := first; i < end; i++ {
					must(0, unix.Dup3(2, i, unix.O_CLOEXEC))
				}
				continue
			}
			if name == "few numbers" {
				must(0, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(first), Max: uint64(first)}))
				continue
			}
			mapAsLibrary(dir, name)
		}
		fmt.Println(isNativeFD(must(unix.Open(deviceFile, how|unix.O_CLOEXEC, 0))))
	case "barred": // posts until a post fails, by the original descriptor, a duplicate, or a descriptor of a child
		mapAsLibrary(dir, nativeLibrary)
		fd := openDevice()
		panicUnless(isNativeFD(fd), "descriptor %d: got a trapped number, want a native one", fd)
		p := newPoster(fd)
		p.postAndWait()
		if args[2] == "low" {
			p.fd = 40
			must(0, unix.Dup3(fd, p.fd, unix.O_CLOEXEC))
			unix.Close(fd)
		}
		ring := func() {
			fmt.Println("posted")
			for range 20000 {
				if _, err := ringDoorbell(p.fd); err != nil {
					fmt.Println(err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
		if args[2] == "own table" { // only another thread's table contains the descriptor
			runOnOtherThread(func() {
				must(0, unix.Unshare(unix.CLONE_FILES))
				closed := make(chan struct{})
				go func() {
					unix.Close(fd)
					close(closed)
				}()
				<-closed
				ring()
			})
			return
		}
		ring()
	case "floods": // writes more than doorbells
		mapAsLibrary(dir, nativeLibrary)
		fd := openDevice()
		b := make([]byte, 1<<20)
		for range 512 {
			must(unix.Write(fd, b))
		}
		p := newPoster(fd)
		p.postAndWait()
		fmt.Println("written")
		sleepForever()
	case "several":
		mapAsLibrary(dir, nativeLibrary)
		n := 0
		for range must(strconv.Atoi(args[2])) {
			if isNativeFD(openDevice()) {
				n++
			}
		}
		fmt.Println(n)
	}
}

// newNativeFixture makes a world with native doorbells, regardless of the number of processors.
func newNativeFixture(t *testing.T, edit ...func(*SupervisorConfig)) *fixture {
	t.Helper()
	if askHelper {
		t.Skip("doorbells are trapped if the launcher accesses the program")
	}
	return newFixture(t, append([]func(*SupervisorConfig){func(c *SupervisorConfig) {
		c.Doorbells = DoorbellsNative
	}}, edit...)...)
}

// TestNativeDoorbellsAreSeen tests that posts are seen without a trapped call, whether or not the polling thread is
// awake.
func TestNativeDoorbellsAreSeen(t *testing.T) {
	w := newNativeFixture(t)
	w.mustRunSelf("native", "rings", t.TempDir())
}

// TestProgramsWithNativeDoorbells tests which programs have native doorbells.
func TestProgramsWithNativeDoorbells(t *testing.T) {
	w := newNativeFixture(t)
	rdwr, rdonly, wronly := strconv.Itoa(unix.O_RDWR), strconv.Itoa(unix.O_RDONLY), strconv.Itoa(unix.O_WRONLY)
	for _, tt := range []struct {
		name string
		args []string
		want bool
	}{
		{"a library that sends commands by ioctl", []string{rdwr, nativeLibrary}, true},
		{"a later library", []string{rdwr, "libibverbs.so.1.15.61.0"}, true},
		{"no library", []string{rdwr}, false},
		{"an early library", []string{rdwr, "libibverbs.so.1.5.22.1"}, false},
		{"a library of an unknown version", []string{rdwr, "libibverbs.so.1"}, false},
		{"a library with a malformed version", []string{rdwr, "libibverbs.so.1.14.x.0"}, false},
		{"two libraries", []string{rdwr, nativeLibrary, "libibverbs.so.1.15.61.0"}, false},
		{"another library", []string{rdwr, "libibverbs-extra.so.1.14.44.0"}, false},
		{"read only", []string{rdonly, nativeLibrary}, false},
		{"write only", []string{wronly, nativeLibrary}, false},
		{"a limit of the size of files", []string{rdwr, nativeLibrary, "limit=1000000"}, false},
		{"all numbers taken", []string{rdwr, nativeLibrary, "no number"}, false},
		{"a limit below the numbers", []string{rdwr, nativeLibrary, "few numbers"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := w.mustRunSelf("native", append([]string{"opens", t.TempDir()}, tt.args...)...)
			if got := strings.TrimSpace(out); got != strconv.FormatBool(tt.want) {
				t.Errorf("native doorbells: got %s, want %v", got, tt.want)
			}
		})
	}
	t.Run("not wanted", func(t *testing.T) {
		w := newFixture(t, func(c *SupervisorConfig) { c.Doorbells = DoorbellsTrapped })
		if out := w.mustRunSelf("native", "opens", t.TempDir(), rdwr, nativeLibrary); strings.TrimSpace(out) != "false" {
			t.Error("doorbells: got native, want trapped")
		}
	})
	t.Run("no inotify", func(t *testing.T) { // or another limit of inotify; this is not an error
		// The limits suffice for the session, its process, its address space, the file and its native doorbells.
		limits := quota.Limits{quota.Descriptors: {PerUser: descriptorsPerSession + processDescriptors + spaceDescriptors +
			descriptorsPerOpenFile + 2 + 1}}
		w := newNativeFixture(t, func(c *SupervisorConfig) { c.Quota = quota.New(limits) })
		if out := w.mustRunSelf("native", "opens", t.TempDir(), rdwr, nativeLibrary); strings.TrimSpace(out) != "false" {
			t.Error("doorbells without a watch: got native, want trapped")
		}
		if logs := w.logs.takeLines(); len(logs) != 1 || !strings.Contains(logs[0], "doorbells are trapped") {
			t.Errorf("log: got %q, want 1 line about trapped doorbells", logs)
		}
	})
}

// TestNativeFilesAreLimitedByProcessors tests that DoorbellsAuto limits native files to the number of processors, less
// one for each user's thread.
func TestNativeFilesAreLimitedByProcessors(t *testing.T) {
	ledger := quota.New(quota.Limits{})
	a, b := ledger.User(1), ledger.User(2)
	n := nativeFileCounter{users: map[*quota.User]int{}}
	for i, tt := range []struct {
		user *quota.User
		want bool
	}{{a, true}, {a, true}, {b, false}, {a, true}, {a, false}} { // with 4 processors
		if got := n.countFile(tt.user, DoorbellsAuto, 4); got != tt.want {
			t.Errorf("file %d: native doorbells: got %v, want %v", i, got, tt.want)
		}
	}
	if !n.countFile(b, DoorbellsNative, 1) {
		t.Error("take with DoorbellsNative: got false, want true")
	}
	for _, u := range []*quota.User{a, a, a, b} {
		n.uncountFile(u)
	}
	if n.all != 0 || len(n.users) != 0 {
		t.Errorf("count after give: got %d files of %d users, want none", n.all, len(n.users))
	}
}

// TestDoorbellFailsAfterRemoval tests that a doorbell fails after the device was removed or the service has ended, for
// each process and each descriptor.
func TestDoorbellFailsAfterRemoval(t *testing.T) {
	for _, number := range []string{"high", "low", "own table"} {
		for _, end := range []string{"depart", "close"} {
			t.Run(number+"/"+end, func(t *testing.T) {
				w := newNativeFixture(t)
				r := w.startSelf("native", "barred", t.TempDir(), number)
				f := w.srv.waitForOpen(t, 1)
				w.waitForText(r, "posted")
				if end == "depart" {
					f.mem.(uverbs.Departer).Depart()
				} else {
					w.sup.Close()
				}
				testutil.Eventually(t, "the doorbell to fail", func() bool {
					return strings.Contains(r.output.String(), syscall.EFBIG.Error())
				})
				if code, out := w.waitForExit(r); code != 0 {
					t.Errorf("exit code: got %d, want 0; printed %s", code, out)
				}
			})
		}
	}
}

// TestWrittenPagesAreFreed tests that the supervisor frees the pages that a program writes.
func TestWrittenPagesAreFreed(t *testing.T) {
	w := newNativeFixture(t)
	r := w.startSelf("native", "floods", t.TempDir())
	w.waitForText(r, "written")
	files := queueFilesOf(t, r)
	if len(files) == 0 {
		t.Fatal("queue files: got none, want one")
	}
	testutil.Eventually(t, "the pages to be freed", func() bool {
		var st unix.Stat_t
		return unix.Stat(files[0], &st) == nil && st.Blocks*512 < 1<<20
	})
	r.Signal(unix.SIGKILL)
	w.waitForExit(r)
}

// TestManyFilesGetNativeFDs tests that each of many files gets a native number.
func TestManyFilesGetNativeFDs(t *testing.T) {
	w := newNativeFixture(t)
	if out := w.mustRunSelf("native", "several", t.TempDir(), "40"); strings.TrimSpace(out) != "40" {
		t.Errorf("native doorbells: got %s, want 40", out)
	}
	testutil.Eventually(t, "the count of native files to drop to 0", func() bool {
		n := &w.sup.natives
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.all == 0 && len(n.users) == 0
	})
}
