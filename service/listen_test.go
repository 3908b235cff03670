package service

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
	"verbena/supervisor"
)

const shortTimeout = 200 * time.Millisecond

// TestListenKeepsOtherFiles tests that Listen changes no file other than a socket of this user without a listener.
func TestListenKeepsOtherFiles(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		make  func(path string) error
		errno syscall.Errno
	}{
		"text":      {func(p string) error { return os.WriteFile(p, []byte("dear"), 0o600) }, syscall.EEXIST},
		"empty":     {func(p string) error { return os.WriteFile(p, nil, 0o600) }, syscall.EEXIST},
		"directory": {func(p string) error { return os.Mkdir(p, 0o700) }, syscall.EEXIST},
		"fifo":      {func(p string) error { return unix.Mkfifo(p, 0o600) }, syscall.EEXIST},
		"link":      {func(p string) error { return os.Symlink("nowhere", p) }, syscall.EEXIST},
		"alive": {func(p string) error {
			l, err := net.Listen("unix", p)
			t.Cleanup(func() { l.Close() })
			return err
		}, syscall.EADDRINUSE},
		"datagrams": {func(p string) error {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: p, Net: "unixgram"})
			t.Cleanup(func() { l.Close() })
			return err
		}, syscall.EADDRINUSE},
	} {
		path := filepath.Join(dir, name)
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		l, err := listenWithTimeout(ctl.Location{Socket: path}, nil, shortTimeout)
		if !errors.Is(err, c.errno) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %v", name, err, c.errno)
		}
		if err == nil {
			l.CloseAndUnlock()
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: stat of the file: got another file or error %v, want the same file", name, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "text")); err != nil || string(b) != "dear" {
		t.Errorf("content of the text file: got %q and error %v, want no change", b, err)
	}
}

// TestListenKeepsOtherUsersSocket tests that Listen never removes the socket of another user.
func TestListenKeepsOtherUsersSocket(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to give a socket to another user")
	path := filepath.Join(t.TempDir(), "sock")
	makeDeadSocket(t, path)
	if err := os.Lchown(path, 65533, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := listenWithTimeout(ctl.Location{Socket: path}, nil, shortTimeout); !errors.Is(err, syscall.EPERM) {
		t.Errorf("Listen: got %v, want EPERM", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func makeDeadSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// TestListenReplacesDeadSocket tests that Listen replaces a socket without a listener, and that the new socket has
// its owner and mode from the start.
func TestListenReplacesDeadSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	makeDeadSocket(t, path)
	old := unix.Umask(0)
	l, err := Listen(ctl.Location{Socket: path}, nil)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.CloseAndUnlock()
	if fi, err := os.Lstat(path); err != nil || fi.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("socket: got %v and error %v, want mode 0600", fi.Mode(), err)
	}
	if c, err := ctl.Dial(ctl.Location{Socket: path}); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket after Close: got %v, want ErrNotExist", err)
	}
}

// TestOnlyOwnSocketIsShared tests that share changes the owner and the mode only of this user's sockets.
func TestOnlyOwnSocketIsShared(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to give a socket to another user")
	dir := t.TempDir()
	text, foreign, own := filepath.Join(dir, "text"), filepath.Join(dir, "foreign"), filepath.Join(dir, "own")
	makeDeadSocket(t, foreign)
	makeDeadSocket(t, own)
	if err := errors.Join(os.WriteFile(text, nil, 0o600), os.Lchown(foreign, 65533, -1)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{text: syscall.EPERM, foreign: syscall.EPERM, own: nil} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		l := &Listener{socket: os.NewFile(uintptr(fd), path)}
		err = l.setSharedMode(&supervisor.Node{UID: os.Geteuid(), GID: os.Getegid(), Mode: 0o666})
		l.socket.Close()
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "it has been replaced") {
			t.Errorf("share %s: got %v, want %v", path, err, want)
		}
		if after, _ := os.Lstat(path); want != nil && after.Mode() != before.Mode() {
			t.Errorf("share %s: got mode %v, want %v", path, after.Mode(), before.Mode())
		}
	}
}

// TestListenRefusesLongPath tests that Listen refuses a path too long for connect(2), and leaves no lock file.
func TestListenRefusesLongPath(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "listen")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for n, want := range map[int]error{107: nil, 108: syscall.ENAMETOOLONG} {
		path := filepath.Join(dir, strings.Repeat("x", n-len(dir)-1))
		l, err := listenWithTimeout(ctl.Location{Socket: path}, nil, shortTimeout)
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "108 bytes exceed 107") {
			t.Errorf("Listen at a path of %d bytes: got %v, want %v", n, err, want)
		}
		if err == nil {
			l.CloseAndUnlock()
		}
	}
	if left, err := filepath.Glob(dir + "/" + strings.Repeat("x", 108-len(dir)-1) + "*"); len(left) > 0 || err != nil {
		t.Errorf("remaining files: got %q and error %v, want none", left, err)
	}
}

func TestListenSetsSharedMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := Listen(ctl.Location{Socket: path}, &supervisor.Node{UID: os.Geteuid(), GID: os.Getegid(), Mode: 0o660})
	if err != nil {
		t.Fatal(err)
	}
	defer l.CloseAndUnlock()
	if fi, err := os.Lstat(path); err != nil || fi.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("socket: got %v and error %v, want the shared mode", fi.Mode(), err)
	}
}

// TestListenLocksLocation tests that exactly one of several concurrent services locks a location, and that the end of
// another service does not remove its socket.
func TestListenLocksLocation(t *testing.T) {
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "sock")}
	for round := range 30 {
		if round%2 == 0 {
			makeDeadSocket(t, loc.Socket)
		}
		const claims = 4
		results := make(chan *Listener, claims)
		for range claims {
			go func() {
				l, err := Listen(loc, nil)
				if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
					t.Errorf("Listen: got %v, want EADDRINUSE", err)
				}
				results <- l
			}()
		}
		var won []*Listener
		late := time.NewTimer(10 * time.Second)
		for n := 0; n < claims; {
			select {
			case l := <-results:
				if n++; l != nil {
					won = append(won, l)
				}
			case <-late.C:
				t.Error("Listen while a service answers: got a wait, want an immediate return")
				for _, l := range won {
					l.CloseAndUnlock()
				}
				for ; n < claims; n++ {
					if l := <-results; l != nil {
						l.CloseAndUnlock()
					}
				}
				return
			}
		}
		late.Stop()
		if len(won) != 1 {
			t.Fatalf("services with the location: got %d, want 1", len(won))
		}
		if !isListening(loc) {
			t.Fatal("owner of the location: got no answer, want one")
		}
		won[0].CloseAndUnlock()
	}
}

// TestListenerCloseKeepsOtherSocket tests that Close keeps a socket that another process has put in place of the
// service's own socket.
func TestListenerCloseKeepsOtherSocket(t *testing.T) {
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "sock")}
	l, err := Listen(loc, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(loc.Socket); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(loc.Socket, []byte("dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.CloseAndUnlock()
	if b, err := os.ReadFile(loc.Socket); err != nil || string(b) != "dear" {
		t.Errorf("file of another process after Close: got %q and error %v, want no change", b, err)
	}
}

// TestListenWaitsForEndingService tests that Listen waits for an ending service.
func TestListenWaitsForEndingService(t *testing.T) {
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "sock")}
	first, err := Listen(loc, nil)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	time.AfterFunc(shortTimeout, first.CloseAndUnlock)
	began := time.Now()
	second, err := Listen(loc, nil)
	if err != nil {
		t.Fatal(err)
	}
	second.CloseAndUnlock()
	if d := time.Since(began); d < shortTimeout/2 {
		t.Errorf("Listen at a claimed location: got a wait of %v, want at least %v", d, shortTimeout/2)
	}
}

// TestListenRefusesUntrustedDirectory tests that Listen refuses a directory in which other users can rename files,
// since they could replace the service.
func TestListenRefusesUntrustedDirectory(t *testing.T) {
	for mode, want := range map[os.FileMode]error{
		0o777: syscall.EPERM, 0o770: syscall.EPERM, 0o707: syscall.EPERM, 0o755: nil, 0o777 | fs.ModeSticky: nil,
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		l, err := listenWithTimeout(ctl.Location{Socket: filepath.Join(dir, "sock")}, nil, shortTimeout)
		if !errors.Is(err, want) {
			t.Errorf("Listen in a directory of mode %v: got %v, want %v", mode, err, want)
		}
		if err == nil {
			l.CloseAndUnlock()
		}
	}
}

// TestDefaultLocationIsPrivate tests that no other user can write to the default directory.
func TestDefaultLocationIsPrivate(t *testing.T) {
	t.Setenv("VERBENA_SOCKET", "")
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(dir, "verbena")
	if l, err := ctl.DefaultLocation(); err != nil || filepath.Dir(l.Socket) != control {
		t.Fatalf("DefaultLocation: got %v, %v", l, err)
	}
	for _, mode := range []os.FileMode{0o777, 0o770, 0o702, 0o777 | fs.ModeSticky} {
		if err := os.Chmod(control, mode); err != nil {
			t.Fatal(err)
		}
		if l, err := ctl.DefaultLocation(); !errors.Is(err, syscall.EPERM) {
			t.Errorf("DefaultLocation with a directory of mode %v: got %v, %v, want EPERM", mode, l, err)
		}
	}
	if err := os.Chmod(control, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(control, 65533, -1); err != nil {
			t.Fatal(err)
		}
		if l, err := ctl.DefaultLocation(); !errors.Is(err, syscall.EPERM) {
			t.Errorf("DefaultLocation in another user's directory: got %v, %v, want EPERM", l, err)
		}
	}
}

// TestOpenOwnKeepsOthersFiles tests that opening a lock or log file in a shared directory does not damage other users'
// files.
func TestOpenOwnKeepsOthersFiles(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"symlink":   func(p string) error { return os.Symlink(victim, p) },
		"hard link": func(p string) error { return os.Link(victim, p) },
		"fifo":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		"of another user": func(p string) error {
			if os.Geteuid() != 0 {
				return os.Symlink(victim, p) // this symbolic link is tried first
			}
			return errors.Join(os.WriteFile(p, []byte("theirs"), 0o666), os.Chown(p, 65533, -1))
		},
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		for what, open := range map[string]func(string) (*os.File, error){
			"log":  openLog,
			"lock": func(p string) (*os.File, error) { return openLockedFile(p, unix.LOCK_EX|unix.LOCK_NB) },
		} {
			if f, err := open(path); !errors.Is(err, syscall.EPERM) {
				t.Errorf("%s, %s: got %v, %v, want EPERM", name, what, f, err)
			}
		}
		os.Remove(path)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "dear" {
		t.Errorf("content of the victim's file: got %q and error %v, want no change", b, err)
	}
	f, err := openLog(victim) // the file has one name again
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || fi.Size() != 0 {
		t.Errorf("new log: got %v bytes and error %v, want an empty file", fi.Size(), err)
	}
}

// TestOpenLockedFileMatchesPath tests that flock locks the file that the path refers to when flock returns.
func TestOpenLockedFileMatchesPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := openLockedFile(path, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := openLockedFile(path, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("flock of a locked file: got %v, want EWOULDBLOCK", err)
	}
	got := make(chan *os.File, 1)
	testutil.WaitBlocked(t, func() {
		f, err := openLockedFile(path, unix.LOCK_EX)
		if err != nil {
			t.Error(err)
		}
		got <- f
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second := <-got
	defer second.Close()
	if !isOpenFile(second, path) {
		t.Error("flock: got a lock on a removed file")
	}
}
