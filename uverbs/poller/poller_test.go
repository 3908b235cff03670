package poller

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/leaktest"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/uverbs"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// countedFile counts posts. The count is the number that was written last.
type countedFile struct {
	posted, rung atomic.Int64
	panics       atomic.Bool
	failed       atomic.Pointer[error]
}

func (f *countedFile) RingPosted(ib.Staller, *uverbs.RingScan, bool) (bool, error) {
	if f.panics.CompareAndSwap(true, false) {
		panic("on purpose")
	}
	n := f.posted.Load()
	return f.rung.Swap(n) != n, nil
}

func (f *countedFile) HasNewRequests() bool { return f.posted.Load() != f.rung.Load() }

func (f *countedFile) FailDevice(why error) { f.failed.Store(&why) }

// fixture holds the pollers of a test, with one user.
type fixture struct {
	*testing.T
	*Pollers
	user *quota.User
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{t, New(slog.New(slog.DiscardHandler)), quota.New(quota.Limits{}).User(1000)}
	t.Cleanup(func() {
		testutil.Eventually(t, "everything to be given back", func() bool {
			for k := range quota.NumKinds {
				if w.user.Held(k) != 0 {
					return false
				}
			}
			return true
		})
	})
	return w
}

func (w *fixture) addSource(s Source) *PolledSource {
	w.Helper()
	x, err := w.Pollers.Add(w.user, s)
	if err != nil {
		w.Fatal(err)
	}
	return x
}

// newEventfdSource returns a source with an eventfd, as for a client over a socket.
func (w *fixture) newEventfdSource() (f *countedFile, s Source, awake *atomic.Bool) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { unix.Close(fd) })
	f, awake = &countedFile{}, &atomic.Bool{}
	return f, Source{File: f, Doorbell: fd, Tell: awake.Store}, awake
}

// newWatchedSource returns a source with a file on a memory file system. program is the program's descriptor of the
// file.
func (w *fixture) newWatchedSource() (f *countedFile, s Source, program *os.File) {
	dir, err := os.MkdirTemp("/dev/shm", "verbena-poller-test-")
	if err != nil {
		w.Skipf("no /dev/shm: %v", err)
	}
	w.Cleanup(func() { os.RemoveAll(dir) })
	if program, err = os.Create(filepath.Join(dir, "queues")); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { program.Close() })
	f = &countedFile{}
	return f, Source{File: f, Watched: func(inotify int, mask uint32) (int, error) {
		return unix.InotifyAddWatch(inotify, program.Name(), mask)
	}}, program
}

func (w *fixture) waitUntilAsleep(x *PolledSource) {
	w.Helper()
	testutil.Eventually(w, "the watch to be armed", x.armed.Load)
}

// TestDoorbellWakesThread checks that posts are found in both states of the thread: awake, and asleep with a write to
// the doorbell.
func TestDoorbellWakesThread(t *testing.T) {
	w := newFixture(t)
	f, s, awake := w.newEventfdSource()
	x := w.addSource(s)
	for i := range int64(200) {
		f.posted.Store(i + 1)
		if !awake.Load() {
			unix.Write(s.Doorbell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
		testutil.Eventually(t, "the post to be seen", func() bool { return f.rung.Load() == i+1 })
		if i%10 == 0 {
			testutil.Eventually(t, "the thread to sleep", func() bool { return !awake.Load() })
		}
	}
	x.Stop()
}

// TestPostsByStoresAreFound checks that the thread finds posts that nothing announces, also after a pause, while the
// program can post. While it cannot, the thread sleeps until Wake.
func TestPostsByStoresAreFound(t *testing.T) {
	w := newFixture(t)
	f, canPost := &countedFile{}, &atomic.Bool{}
	canPost.Store(true)
	x := w.addSource(Source{File: f, Posts: canPost.Load})
	post := func(n int64) {
		f.posted.Store(n)
		testutil.Eventually(t, "the post to be seen", func() bool { return f.rung.Load() == n })
	}
	for i := range int64(50) {
		post(i + 1)
		if i%10 == 0 {
			time.Sleep(20 * time.Millisecond) // the thread sleeps
		}
	}
	canPost.Store(false)
	time.Sleep(2 * maxPause)
	f.posted.Store(100)
	time.Sleep(2 * maxPause)
	if n := f.rung.Load(); n == 100 {
		t.Error("program that cannot post: got a ring, want none before Wake")
	}
	canPost.Store(true)
	x.Wake()
	post(100)
	x.Stop()
}

// TestPauses tests the sleeps of a thread: a share of the time since the last request, within limits.
func TestPauses(t *testing.T) {
	posts := true
	r := &runner{known: &[]*PolledSource{{Source: Source{Posts: func() bool { return posts }}}}}
	for _, c := range []struct{ idle, most, want time.Duration }{
		{0, -1, minPause}, {4 * time.Millisecond, -1, time.Millisecond}, {time.Second, -1, maxPause},
		{time.Second, unwatchedPause, unwatchedPause},
	} {
		if got := r.pauseAfter(c.idle, c.most); got != c.want {
			t.Errorf("pause after %v, at most %v: got %v, want %v", c.idle, c.most, got, c.want)
		}
	}
	posts = false
	if got := r.pauseAfter(time.Second, -1); got >= 0 {
		t.Errorf("pause while no program can post: got %v, want none", got)
	}
}

// TestWatchedFileWakesThread checks the same with writes to a watched file. The test also checks that other files
// remain watched.
func TestWatchedFileWakesThread(t *testing.T) {
	w := newFixture(t)
	var files [3]*countedFile
	var programs [3]*os.File
	var all [3]*PolledSource
	var tended atomic.Int64
	for i := range files {
		var s Source
		files[i], s, programs[i] = w.newWatchedSource()
		s.Due = func() bool { return true }
		s.Tend = func() { tended.Add(1) }
		all[i] = w.addSource(s)
	}
	for i := range int64(300) {
		at := int(i) % 2
		files[at].posted.Store(i + 1)
		programs[at].WriteString("doorbell")
		testutil.Eventually(t, "the post to be seen", func() bool { return files[at].rung.Load() == i+1 })
		if i%10 == 0 {
			w.waitUntilAsleep(all[0])
			w.waitUntilAsleep(all[1])
		}
	}
	w.waitUntilAsleep(all[2])
	files[2].posted.Store(1)
	programs[2].WriteString("doorbell")
	testutil.Eventually(t, "the post in a file that has been watched all the time",
		func() bool { return files[2].rung.Load() == 1 })
	testutil.Eventually(t, "the files to be tended", func() bool { return tended.Load() != 0 })
	// Stopped files must not be watched any more.
	fdinfo := fmt.Sprintf("/proc/self/fdinfo/%d", all[0].p.inotify.Load().fd.Load())
	all[0].Stop()
	all[2].Stop()
	testutil.Eventually(t, "one file to be watched", func() bool { // armed is set shortly before the watch exists
		info, err := os.ReadFile(fdinfo)
		return err == nil && strings.Count(string(info), "inotify wd:") == 1
	})
	all[1].Stop()
}

// TestBlockedTendDelaysNoPolling checks a Tend that blocks, for example while it releases written pages of a program.
// Such a Tend must delay neither other programs nor the end.
func TestBlockedTendDelaysNoPolling(t *testing.T) {
	w := newFixture(t)
	f, s, program := w.newWatchedSource()
	begun, end := make(chan struct{}, 1), make(chan struct{})
	var tending, due atomic.Int64
	s.Due = func() bool {
		due.Add(1)
		return true
	}
	s.Tend = func() {
		if tending.Add(1) == 2 {
			t.Error("Tend: got two calls at the same time for one user, want one")
		}
		defer tending.Add(-1)
		select {
		case begun <- struct{}{}:
		default:
		}
		<-end
	}
	defer close(end)
	x := w.addSource(s)
	<-begun
	other, o, _ := w.newWatchedSource()
	y := w.addSource(o)
	program.WriteString("doorbell")
	asked := due.Load()
	testutil.Eventually(t, "another look at whether that is due", func() bool {
		program.WriteString("doorbell")
		return due.Load() > asked+2
	})
	for _, f := range []*countedFile{f, other} {
		f.posted.Store(1)
	}
	program.WriteString("doorbell")
	for _, f := range []*countedFile{f, other} {
		testutil.Eventually(t, "the post to be seen", func() bool { return f.rung.Load() == 1 })
	}
	x.Stop()
	y.Stop()
}

// TestUnwatchableFileIsPolled checks a file that cannot be watched because the machine has no watches left. Posts must
// be found nevertheless, and the failure must be logged once.
func TestUnwatchableFileIsPolled(t *testing.T) {
	w := newFixture(t)
	var logs testutil.Buffer
	w.Pollers = New(slog.New(slog.NewTextHandler(&logs, nil)))
	f, s, program := w.newWatchedSource()
	watch := s.Watched
	var refused atomic.Int64
	s.Watched = func(inotify int, mask uint32) (int, error) {
		if refused.Load() < 50 {
			refused.Add(1)
			return -1, unix.ENOSPC
		}
		return watch(inotify, mask)
	}
	x := w.addSource(s)
	for i := range int64(10) {
		testutil.Eventually(t, "the watch to be refused", func() bool { return refused.Load() >= 3*(i+1) })
		f.posted.Store(i + 1)
		testutil.Eventually(t, "the post to be seen", func() bool { return f.rung.Load() == i+1 })
	}
	w.waitUntilAsleep(x)
	f.posted.Store(100)
	program.WriteString("doorbell")
	testutil.Eventually(t, "the post to be seen, with a watch", func() bool { return f.rung.Load() == 100 })
	x.Stop()
	if n := strings.Count(logs.String(), "watch for doorbells"); n != 1 {
		t.Errorf("log records: got %d, want 1:\n%s", n, logs.String())
	}
}

// TestFailedWatchLeavesNothing checks that Add fails for a file that cannot be watched, and leaves no resources behind.
func TestFailedWatchLeavesNothing(t *testing.T) {
	w := newFixture(t)
	w.user = quota.New(quota.Limits{quota.Descriptors: {PerUser: descriptorsPerPoller - 1}}).User(1000)
	_, s, _ := w.newWatchedSource()
	if _, err := w.Pollers.Add(w.user, s); err == nil {
		t.Fatal("Add beyond the limit of descriptors: got nil, want an error")
	} else if !strings.Contains(err.Error(), "descriptors") {
		t.Error(err)
	}
}

// TestPanicFailsDevice checks that a panic in a doorbell is reported as a failure of the device, and that the thread
// continues.
func TestPanicFailsDevice(t *testing.T) {
	w := newFixture(t)
	f, s, _ := w.newEventfdSource()
	f.panics.Store(true)
	x := w.addSource(s)
	testutil.Eventually(t, "the failure", func() bool { return f.failed.Load() != nil })
	f.posted.Store(1)
	unix.Write(s.Doorbell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	testutil.Eventually(t, "the next post to be seen", func() bool { return f.rung.Load() == 1 })
	x.Stop()
}

// TestBlockedRunnerIsReplaced checks a thread that is blocked on a file. The thread must be replaced once, by a thread
// that skips the file. When the blocked thread continues, it must end, and the new thread must poll the file again.
func TestBlockedRunnerIsReplaced(t *testing.T) {
	w := newFixture(t)
	_, s, awake := w.newEventfdSource()
	x := w.addSource(s)
	p := x.p
	current := func() *runner {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.current
	}
	testutil.Eventually(t, "the file for the test", func() bool { return x.busy.CompareAndSwap(false, true) })
	old := current()
	x.by = old
	x.Stalled()
	testutil.Eventually(t, "another thread", func() bool { return current() != old })
	replaced := current()
	x.Stalled() // too late
	testutil.Eventually(t, "the old thread to come back and end", func() bool {
		p.mu.Lock()
		p.wakeLocked() // wakes one of the two threads
		p.mu.Unlock()
		select {
		case <-old.ended:
			return true
		default:
			return false
		}
	})
	testutil.Eventually(t, "one thread to be left", func() bool { return w.user.Held(quota.Workers) == 1 })
	if current() != replaced {
		t.Error("runner: got a second replacement, want only one")
	}
	testutil.Eventually(t, "the other thread to sleep", func() bool { return !awake.Load() })
	time.Sleep(time.Millisecond) // the thread reports its sleep shortly before it sleeps
	x.busy.Store(false)
	if old.isCurrent() { // the replaced thread detects its replacement when it continues
		t.Error("isCurrent of the replaced thread: got true, want false")
	}
	testutil.Eventually(t, "the other thread to look at the file", func() bool {
		if !x.busy.CompareAndSwap(false, true) {
			return false
		}
		by := x.by
		x.busy.Store(false)
		return by == replaced
	})
	x.Stop()
}

// TestIdleAllowsLongWork checks that a thread may continue with a file while it has not been replaced, no file was
// added or removed, and no requests are posted elsewhere. The thread must call Due in between.
func TestIdleAllowsLongWork(t *testing.T) {
	due := 0
	newFile := func(p *poller) (*countedFile, *PolledSource) {
		f := &countedFile{}
		return f, &PolledSource{Source: Source{File: f, Due: func() bool { due++; return false }}, p: p}
	}
	p := &poller{set: New(slog.New(slog.DiscardHandler)), closed: true}
	own, x := newFile(p)
	other, y := newFile(p)
	list := []*PolledSource{x, y}
	p.files.Store(&list)
	r := &runner{p: p, known: &list, lastTend: time.Now()}
	p.current, x.by = r, r
	check := func(when string, want bool) {
		t.Helper()
		if got := x.Idle(); got != want {
			t.Errorf("Idle %s: got %t, want %t", when, got, want)
		}
	}
	check("with nothing posted", true)
	own.posted.Store(1)
	check("with more posted there", true)
	other.posted.Store(1)
	check("with something posted elsewhere", false)
	y.busy.Store(true)
	check("where another thread is stopped there", true)
	if due != 0 {
		t.Errorf("calls of Due at once: got %d, want none", due)
	}
	r.lastTend = r.lastTend.Add(-tendTime)
	check("after a while", true)
	if due != 2 {
		t.Errorf("calls of Due: got %d, want 2", due)
	}
	more := slices.Clone(list)
	p.files.Store(&more)
	check("with another file", false)
	r.known = &more
	p.current = nil
	check("when it is replaced", false)
}

// TestUsersShareInotifyInstances checks that the watched files of 20 users share a few inotify instances. Each doorbell
// must wake the thread of its own user, and no doorbell may be lost while users are added and removed. The instances
// must be closed with the last users.
func TestUsersShareInotifyInstances(t *testing.T) {
	if n := maxWatchers(); n < 1 || n > 16 {
		t.Errorf("maximum number of instances: got %d, want 1 to 16", n)
	}
	for _, most := range []int{1, 3} {
		t.Run(fmt.Sprint(most), func(t *testing.T) { testSharedInotifyInstances(t, most) })
	}
}

func testSharedInotifyInstances(t *testing.T, most int) {
	w := newFixture(t)
	w.maxWatcherCount = most
	ledger := quota.New(quota.Limits{})
	instances := func() (n int) {
		dir, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dir {
			if to, _ := os.Readlink("/proc/self/fd/" + d.Name()); to == "anon_inode:inotify" {
				n++
			}
		}
		return n
	}
	before := instances()
	const users = 20
	var all [users]*PolledSource
	var files [users]*countedFile
	var programs [users]*os.File
	for i := range all {
		var s Source
		files[i], s, programs[i] = w.newWatchedSource()
		var err error
		if all[i], err = w.Pollers.Add(ledger.User(2000+i), s); err != nil {
			t.Fatal(err)
		}
	}
	if n := instances() - before; n != most {
		t.Errorf("%d users: got %d inotify instances, want %d", users, n, most)
	}
	for _, x := range all {
		w.waitUntilAsleep(x)
	}
	for round := range int64(50) {
		for i := range all {
			files[i].posted.Store(round + 1)
			programs[i].WriteString("doorbell")
			if round%5 == 4 {
				testutil.Eventually(t, "the post to be seen", func() bool { return files[i].rung.Load() == round+1 })
			}
		}
		_, s, _ := w.newWatchedSource() // another file is added and removed
		x, err := w.Pollers.Add(ledger.User(3000), s)
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			testutil.Eventually(t, "each post to be seen", func() bool { return files[i].rung.Load() == round+1 })
		}
		x.Stop()
	}
	for _, x := range all {
		x.Stop()
	}
	testutil.Eventually(t, "the instances to go", func() bool { return instances() == before })
	if n := w.watched; n != 0 {
		t.Errorf("watched files: got %d, want 0", n)
	}
}

// TestWatchesAreLimitedPerUser checks that one user cannot use all watches of the service's account, and that all users
// together leave some watches unused. The error must name the limit.
func TestWatchesAreLimitedPerUser(t *testing.T) {
	w := newFixture(t)
	w.most = func() (int, int) { return 2, 3 }
	ledger := quota.New(quota.Limits{})
	add := func(uid int) (*PolledSource, error) {
		_, s, _ := w.newWatchedSource()
		return w.Pollers.Add(ledger.User(uid), s)
	}
	var held []*PolledSource
	for _, c := range []struct {
		uid  int
		says string
	}{{1, ""}, {1, ""}, {1, "user 1 has 2 watched files"}, {2, ""}, {2, "all users together have 3 watched files"},
		{3, "all users together have 3 watched files"}} {
		x, err := add(c.uid)
		if c.says == "" && err == nil {
			held = append(held, x)
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, unix.EMFILE) {
			t.Errorf("user %d: got %v, want %q", c.uid, err, c.says)
		}
	}
	held[0].Stop()
	x, err := add(3)
	if err != nil {
		t.Fatalf("after a Stop: got %v", err)
	}
	x.Stop()
	for _, x := range held[1:] {
		x.Stop()
	}
	if user, all := maxWatches(); user < 1 || all < user {
		t.Errorf("inotify watches of this machine: got limits of %d per user and %d in total, want positive limits",
			user, all)
	}
}

// BenchmarkDoorbell measures the time from a write to a watched file until the woken thread has found the post.
func BenchmarkDoorbell(b *testing.B) {
	for _, others := range []int{0, 8} {
		b.Run(fmt.Sprint(others, "others"), func(b *testing.B) {
			pollers := New(slog.New(slog.DiscardHandler))
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(32)) // the same setting as in the service: see sched.Widen
			ledger := quota.New(quota.Limits{})
			source := func(uid int) (*countedFile, *os.File, *PolledSource) {
				f := &countedFile{}
				program, err := os.CreateTemp("/dev/shm", "verbena-poller-test-")
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { program.Close(); os.Remove(program.Name()) })
				x, err := pollers.Add(ledger.User(uid), Source{File: f, Watched: func(inotify int, mask uint32) (int, error) {
					return unix.InotifyAddWatch(inotify, program.Name(), mask)
				}})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(x.Stop)
				return f, program, x
			}
			for i := range others {
				source(100 + i)
			}
			f, program, _ := source(1)
			var sum time.Duration
			for i := range b.N {
				time.Sleep(300 * time.Microsecond) // waits until the thread sleeps again
				f.posted.Store(int64(i + 1))
				began := time.Now()
				program.WriteString("doorbell")
				for f.rung.Load() != int64(i+1) {
				}
				sum += time.Since(began)
			}
			b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), "ns/wake")
		})
	}
}
