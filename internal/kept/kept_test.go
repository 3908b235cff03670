package kept

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/leaktest"
	"verbena/internal/quota"
	"verbena/internal/reopen"
	"verbena/internal/testutil"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fileDescriptionKinds makes objects of each kind. It returns the descriptor for a program, and the descriptors of the
// service.
var fileDescriptionKinds = []struct {
	name string
	make func(t *testing.T) (theirs int, ours []int)
}{
	{"pipe", func(t *testing.T) (int, []int) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		return p[0], p[1:]
	}},
	{"socket", func(t *testing.T) (int, []int) {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p[0], p[1:]
	}},
	{"eventfd", func(t *testing.T) (int, []int) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return fd, nil
	}},
}

// newUserObjects returns the UserObjects of a user who is charged for n descriptors.
func newUserObjects(t *testing.T, n uint64) (*UserObjects, *quota.User) {
	k := New(nil)
	t.Cleanup(k.Close)
	var limits quota.Limits
	limits[quota.Descriptors].PerUser = n
	ledger := quota.New(limits)
	ledger.OnShortage(k.Release)
	u := ledger.User(1000)
	if err := u.Charge(quota.Descriptors, n); err != nil {
		t.Fatal(err)
	}
	return k.ObjectsOf(u), u
}

func keepChargedObject(s *UserObjects, o Object) {
	s.Keep(o, func() { s.user.Release(quota.Descriptors, 1) })
}

// noteNewFile makes a description and notes it.
func noteNewFile(t *testing.T, s *UserObjects, make func(t *testing.T) (int, []int)) (n FileNote, theirs int,
	ours []int) {
	t.Helper()
	theirs, ours = make(t)
	n, err := s.NoteFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	return n, theirs, ours
}

// waitForCharge waits until the user is charged for n descriptors.
func waitForCharge(t *testing.T, u *quota.User, n uint64) {
	t.Helper()
	testutil.Eventually(t, fmt.Sprintf("the user to hold %d descriptors", n), func() bool {
		return u.Held(quota.Descriptors) == n
	})
}

func TestKeepReleasesClosedObject(t *testing.T) {
	for _, d := range fileDescriptionKinds {
		t.Run(d.name, func(t *testing.T) {
			s, u := newUserObjects(t, 1)
			n, theirs, ours := noteNewFile(t, s, d.make)
			if !n.InUse() {
				t.Error("InUse of an open description: got false, want true")
			}
			for _, fd := range append(ours, theirs) {
				unix.Close(fd)
			}
			keepChargedObject(s, n)
			if held := u.Held(quota.Descriptors); held != 0 || s.epoll != -1 {
				t.Errorf("after Keep: got %d charged descriptors and epoll descriptor %d, want 0 and -1", held, s.epoll)
			}
		})
	}
}

// TestReleaseCallsOnRelease tests that a user who lacks descriptors gets the descriptors that Release frees, including
// those of objects that are closed only then. A forgotten function is not called.
func TestReleaseCallsOnRelease(t *testing.T) {
	s, u := newUserObjects(t, 2)
	n, theirs, ours := noteNewFile(t, s, fileDescriptionKinds[0].make)
	unix.Close(theirs)
	calls := 0
	sweep := s.OnRelease(func() {
		if calls++; calls == 1 {
			unix.Close(ours[0])
			keepChargedObject(s, n)
		}
	})
	if err := u.Charge(quota.Descriptors, 1); err != nil || calls != 1 {
		t.Errorf("Take: got %v after %d calls, want success after 1", err, calls)
	}
	s.RemoveSweep(sweep)
	if err := u.Charge(quota.Descriptors, 1); err == nil || calls != 1 {
		t.Errorf("Take after Forget: got %v after %d calls, want a refusal after 1", err, calls)
	}
}

// TestKeepSkipsCheckOfManyNotes tests that Keep does not check all notes of a user with many notes.
func TestKeepSkipsCheckOfManyNotes(t *testing.T) {
	for _, tt := range []struct {
		notes int
		held  uint64 // charged descriptors when Keep returns
	}{{fewNotes, fewNotes - 1}, {fewNotes + 1, fewNotes + 1}} {
		s, u := newUserObjects(t, uint64(tt.notes))
		var first FileNote
		for i := range tt.notes {
			n, theirs, ours := noteNewFile(t, s, fileDescriptionKinds[0].make)
			if i == 0 {
				first = n
			}
			for _, fd := range append(ours, theirs) {
				if i == 0 {
					unix.Close(fd)
				} else {
					t.Cleanup(func() { unix.Close(fd) })
				}
			}
		}
		keepChargedObject(s, first)
		if held := u.Held(quota.Descriptors); held != tt.held {
			t.Errorf("%d notes: charged descriptors when Keep returns: got %d, want %d", tt.notes, held, tt.held)
		}
		waitForCharge(t, u, uint64(tt.notes-1))
	}
}

func TestCloseAfterKeepEndsCharge(t *testing.T) {
	for _, d := range fileDescriptionKinds {
		t.Run(d.name, func(t *testing.T) {
			s, u := newUserObjects(t, 1)
			n, theirs, ours := noteNewFile(t, s, d.make)
			again, err := unix.Dup(theirs) // the program may have several descriptors
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range append(ours, theirs) {
				unix.Close(fd)
			}
			keepChargedObject(s, n)
			s.release()
			if held := u.Held(quota.Descriptors); held != 1 {
				t.Errorf("charged descriptors while the program has the object: got %d, want 1", held)
			}
			unix.Close(again)
			waitForCharge(t, u, 0)
		})
	}
}

// TestChargesStayWithoutDescriptors tests that no charge ends while the service has no free descriptor.
func TestChargesStayWithoutDescriptors(t *testing.T) {
	s, u := newUserObjects(t, 1)
	theirs, ours := fileDescriptionKinds[0].make(t)
	n, err := s.NoteFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(ours[0])
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	keepChargedObject(s, n)
	held, open := u.Held(quota.Descriptors), n.InUse()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if held != 1 || !open {
		t.Errorf("without free descriptors: got %d charged descriptors and in use %v, want 1 and true", held, open)
	}
	unix.Close(theirs)
	waitForCharge(t, u, 0)
}

// TestFileInFlightIsInUse tests that a description in flight counts as in use.
func TestFileInFlightIsInUse(t *testing.T) {
	s, u := newUserObjects(t, 1)
	theirs, ours := fileDescriptionKinds[0].make(t)
	n, err := s.NoteFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(p[0], []byte{0}, unix.UnixRights(theirs), nil, 0); err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{theirs, ours[0], p[0]} {
		unix.Close(fd)
	}
	keepChargedObject(s, n)
	if held := u.Held(quota.Descriptors); held != 1 {
		t.Errorf("charged descriptors in flight: got %d, want 1", held)
	}
	unix.Close(p[1])
	waitForCharge(t, u, 0)
}

func TestUnreadSocketIsInUse(t *testing.T) {
	for _, how := range []string{"read", "closed"} {
		t.Run(how, func(t *testing.T) {
			s, u := newUserObjects(t, 1)
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(p[1], make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			unix.Shutdown(p[1], unix.SHUT_RDWR)
			keepChargedObject(s, UnreadSocket(p[1]))
			if held := u.Held(quota.Descriptors); held != 1 {
				t.Errorf("charged descriptors with 1000 unread bytes: got %d, want 1", held)
			}
			if how == "read" {
				if n, err := unix.Read(p[0], make([]byte, 2000)); n != 1000 {
					t.Errorf("read: got %d bytes and error %v, want 1000", n, err)
				}
				defer unix.Close(p[0])
			} else {
				unix.Close(p[0])
			}
			waitForCharge(t, u, 0)
		})
	}
}

// TestMakePipeReusesCharges tests that the next request of a user at the limit can use the charges of objects that the
// program has closed.
func TestMakePipeReusesCharges(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to open files of mode 0")
	s, _ := newUserObjects(t, 1)
	reader, writer, n, err := s.MakePipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(reader)
	defer unix.Close(writer)
	if !n.InUse() {
		t.Error("InUse of the reading end: got false, want true")
	}
	if _, err := unix.Write(writer, make([]byte, 1<<20)); err != nil {
		t.Errorf("write beyond the size of the pipe: got %v, want a short write", err)
	}
	if fd, err := reopen.FileOnCallingThread(writer, unix.O_RDONLY|unix.O_NONBLOCK); err != nil {
		t.Errorf("reopen of the pipe by the service: got %v, want success", err)
	} else {
		unix.Close(fd)
	}
	testutil.RunOnThread(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
			return
		}
		if fd, err := reopen.FileOnCallingThread(reader, unix.O_RDONLY|unix.O_NONBLOCK); !errors.Is(err, unix.EACCES) {
			t.Errorf("reopen of the pipe without capabilities: got %d, %v, want %v", fd, err, unix.EACCES)
		}
	})
}

// TestLongCheckIsFollowedByPause tests that no check follows a long check for some time, regardless of the number of
// refused calls.
func TestLongCheckIsFollowedByPause(t *testing.T) {
	s, u := newUserObjects(t, 1)
	o := &fakeObject{inUse: true}
	keepChargedObject(s, o)
	s.mu.Lock()
	s.rested, o.inUse = time.Now().Add(time.Hour), false
	s.mu.Unlock()
	s.release()
	if held := u.Held(quota.Descriptors); held != 1 {
		t.Errorf("charged descriptors during the pause: got %d, want 1", held)
	}
	s.mu.Lock()
	s.rested = time.Time{}
	s.mu.Unlock()
	s.release()
	if held := u.Held(quota.Descriptors); held != 0 {
		t.Errorf("charged descriptors after the pause: got %d, want 0", held)
	}
}

// slowObject is an object with an InUse that takes processor time.
type slowObject struct {
	fakeObject
	took time.Duration
}

func (o *slowObject) InUse() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for began := threadCPUTime(); threadCPUTime()-began < o.took; {
	}
	return true
}

// TestPauseIsProportional tests that a pause follows only a long check, in proportion to the time of the check.
func TestPauseIsProportional(t *testing.T) {
	for _, tt := range []struct {
		took time.Duration
		rest bool
	}{{0, false}, {2 * longCheck, true}} {
		s, _ := newUserObjects(t, 1)
		began := time.Now()
		keepChargedObject(s, &slowObject{took: tt.took})
		s.mu.Lock()
		if rested := s.rested.After(began.Add(checkPauseFactor * longCheck)); rested != tt.rest {
			t.Errorf("check of %v: got a rest until %v for a start at %v, want a rest: %v", tt.took, s.rested, began, tt.rest)
		}
		s.mu.Unlock()
	}
}

func TestReleaseChecksManyNotes(t *testing.T) {
	const n = 3 * fewNotes // too many notes for a check by Keep
	s, u := newUserObjects(t, n)
	var open []int
	for range n {
		theirs, ours := fileDescriptionKinds[0].make(t)
		note, err := s.NoteFile(theirs)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(ours[0])
		open = append(open, theirs)
		keepChargedObject(s, note)
	}
	if err := u.Charge(quota.Descriptors, 1); err == nil {
		t.Error("Take while all are kept: got success, want a refusal")
	}
	for _, fd := range open[:n/2] {
		unix.Close(fd)
	}
	if err := u.Charge(quota.Descriptors, n/2); err != nil {
		t.Errorf("Take after %d were closed: got %v, want success", n/2, err)
	}
	if err := u.Charge(quota.Descriptors, 1); err == nil {
		t.Error("Take beyond the closed half: got success, want a refusal")
	}
	for _, fd := range open[n/2:] {
		unix.Close(fd)
	}
	waitForCharge(t, u, n/2)
}

func TestKeeperCloseEndsCharges(t *testing.T) {
	k := New(nil)
	u := quota.New(quota.Limits{}).User(1000)
	if err := u.Charge(quota.Descriptors, 3); err != nil {
		t.Fatal(err)
	}
	s := k.ObjectsOf(u)
	theirs, ours := fileDescriptionKinds[1].make(t)
	defer unix.Close(theirs)
	defer unix.Close(ours[0])
	n, err := s.NoteFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	o := &fakeObject{inUse: true}
	keepChargedObject(s, n)
	keepChargedObject(s, o)
	if held := u.Held(quota.Descriptors); held != 3 {
		t.Errorf("charged descriptors: got %d, want 3", held)
	}
	k.Close()
	late := &fakeObject{inUse: true}
	keepChargedObject(s, late)
	if held := u.Held(quota.Descriptors); held != 0 || !o.closed || !late.closed {
		t.Errorf("after Close: got %d charged descriptors and closed %v, %v, want 0, true, true", held, o.closed, late.closed)
	}
	if k.ObjectsOf(quota.New(quota.Limits{}).User(1)).epoll != -1 {
		t.Error("epoll instance of a new user: got one, want none")
	}
	if n, err := s.NoteFile(theirs); err != nil || n != (FileNote{}) {
		t.Errorf("Note after Close: got %v and error %v, want the zero Note", n, err)
	}
}

type fakeObject struct{ inUse, closed bool }

func (o *fakeObject) InUse() bool { return o.inUse }
func (o *fakeObject) Close() error {
	o.closed = true
	return nil
}

func TestNilKeeperTracksNothing(t *testing.T) {
	var k *Keeper
	s := k.ObjectsOf(nil)
	n, err := s.NoteFile(-1)
	if err != nil || n.InUse() {
		t.Errorf("Note of a nil Kept: got %v and error %v, want the zero Note", n, err)
	}
	o, ended := &fakeObject{inUse: true}, false
	s.Keep(o, func() { ended = true })
	if !o.closed || !ended {
		t.Errorf("Keep of a nil Kept: got closed %v and ended %v, want true and true", o.closed, ended)
	}
	k.Release(nil)
	k.Close()
}

// TestNoteFileRefusesOtherFiles tests that NoteFile returns an error for an object that cannot be noted, and thus not
// charged.
func TestNoteFileRefusesOtherFiles(t *testing.T) {
	s, _ := newUserObjects(t, 1)
	f, err := os.Open(os.DevNull) // cannot be polled
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := s.NoteFile(int(f.Fd())); err == nil {
		t.Error("Note of /dev/null: got success, want an error")
	}
}

func TestParseEpollInfoReturnsIDs(t *testing.T) {
	for _, c := range []struct {
		info string
		want []uint64
	}{
		{"", nil},
		{"pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t1038\n", nil},
		{"pos:\t0\ntfd:        4 events:       18 data:     555600000004  pos:0 ino:4f30d9 sdev:f\n",
			[]uint64{0x555600000004}},
		{"tfd: 9 events: 19 data: 2 pos:0 ino:1 sdev:f\ntfd: 4 events: 19 data: 1 pos:0 ino:1 sdev:f\n", []uint64{1, 2}},
		{"tfd: 9 events: 19 data:", nil},
		{"tfd: 9 events: 19 data: x\n", nil},
		{"tfd: 9 events: 19 data: ffffffffffffffff\n", []uint64{1<<64 - 1}},
	} {
		if got := parseEpollInfo([]byte(c.info)); !slices.Equal(got, c.want) {
			t.Errorf("parse(%q): got %v, want %v", c.info, got, c.want)
		}
	}
}

func BenchmarkCheckObjects(b *testing.B) {
	for _, n := range []int{1, 100, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := New(nil)
			defer k.Close()
			s := k.ObjectsOf(quota.New(quota.Limits{}).User(1))
			for range n {
				fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
				if err != nil {
					b.Fatal(err)
				}
				defer unix.Close(fd)
				if _, err := s.NoteFile(fd); err != nil {
					b.Fatal(err)
				}
			}
			s.Keep(&fakeObject{inUse: true}, func() {})
			for b.Loop() {
				s.release()
			}
		})
	}
}
