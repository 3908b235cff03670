package ctl

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestForeignDirectoryIsRefused tests that the control socket is never in a directory that another user controls.
func TestForeignDirectoryIsRefused(t *testing.T) {
	t.Setenv("VERBENA_SOCKET", "")
	foreign := func(t *testing.T, dir string) {
		t.Helper()
		if os.Geteuid() == 0 {
			if err := os.Chown(dir, 65533, 65533); err != nil {
				t.Fatal(err)
			}
		}
	}
	make := func(t *testing.T, mode os.FileMode) (runtime, dir string) {
		t.Helper()
		runtime = t.TempDir()
		if err := os.Chmod(runtime, 0o700); err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(runtime, "verbena")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		t.Setenv("XDG_RUNTIME_DIR", runtime)
		return runtime, dir
	}
	refused := func(t *testing.T) {
		t.Helper()
		if loc, err := DefaultLocation(); !errors.Is(err, syscall.EPERM) {
			t.Errorf("DefaultLocation: got %+v and error %v, want EPERM", loc, err)
		}
	}
	t.Run("own", func(t *testing.T) {
		_, dir := make(t, 0o700)
		if loc, err := DefaultLocation(); err != nil || filepath.Dir(loc.Socket) != dir {
			t.Errorf("DefaultLocation: got %+v and error %v, want a socket in %s", loc, err, dir)
		}
	})
	for _, mode := range []os.FileMode{0o720, 0o702, 0o777} {
		t.Run(mode.String(), func(t *testing.T) {
			make(t, mode)
			refused(t)
		})
	}
	t.Run("link", func(t *testing.T) {
		runtime, dir := make(t, 0o700)
		other := filepath.Join(runtime, "other")
		if err := errors.Join(os.Rename(dir, other), os.Symlink(other, dir)); err != nil {
			t.Fatal(err)
		}
		refused(t)
	})
	t.Run("file", func(t *testing.T) {
		_, dir := make(t, 0o700)
		if err := errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		refused(t)
	})
	t.Run("another user's", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to create a directory of another user")
		}
		_, dir := make(t, 0o700)
		foreign(t, dir)
		refused(t)
	})
	t.Run("below a writable directory", func(t *testing.T) {
		runtime, _ := make(t, 0o700)
		if err := os.Chmod(runtime, 0o777); err != nil {
			t.Fatal(err)
		}
		if loc, err := DefaultLocation(); err == nil && strings.HasPrefix(loc.Socket, runtime) {
			t.Errorf("DefaultLocation: got %s, want another folder", loc.Socket)
		}
	})
}

// TestDialRefusesLongPath tests that Dial refuses a path that the kernel would truncate, before any connect.
func TestDialRefusesLongPath(t *testing.T) {
	dir := t.TempDir()
	for n, want := range map[int]error{107: ErrNotRunning, 108: syscall.ENAMETOOLONG, 4096: syscall.ENAMETOOLONG} {
		if n <= len(dir)+1 {
			continue
		}
		path := dir + "/" + strings.Repeat("x", n-len(dir)-1)
		if c, err := Dial(Location{Socket: path}); !errors.Is(err, want) {
			t.Errorf("Dial with a path of %d bytes: got %v and error %v, want %v", n, c, err, want)
		}
	}
}

// TestNewConnRefusesNonSocket tests that NewConn refuses and closes a descriptor that is not a socket.
func TestNewConnRefusesNonSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	f, err := tcp.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewConn(f); !errors.Is(err, syscall.ENOTSOCK) {
		t.Errorf("NewConn of a TCP connection: got %v, want ENOTSOCK", err)
	}
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("close of the refused descriptor: got %v, want ErrClosed", err)
	}
}

// TestClipTextShortens tests that ClipText passes on only a short part of a peer's text.
func TestClipTextShortens(t *testing.T) {
	for _, n := range []int{0, 64, 65, 1 << 20} {
		s := strings.Repeat("x", n)
		want := s
		if n > 64 {
			want = s[:64] + "..."
		}
		if got := ClipText(s); got != want {
			t.Errorf("Clip of %d bytes: got %d bytes, want %d", n, len(got), len(want))
		}
	}
}

// TestOpenRefusesEmptyAnswer tests that Open fails if the answer of the service is empty.
func TestOpenRefusesEmptyAnswer(t *testing.T) {
	c := newAnsweredClient(t, func(*Request) any { return &Response{} })
	if a, _, err := c.Open("rxe0"); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("Open: got %v and error %v, want EPROTO", a, err)
	}
}

// TestVersionErrorNamesOlderEnd tests which end a refusal describes as older.
func TestVersionErrorNamesOlderEnd(t *testing.T) {
	for protocol, want := range map[int]string{ProtocolVersion - 1: "is newer than this command",
		ProtocolVersion + 1: "is older than this command", ProtocolVersion: "is older than this command"} {
		err := (&Request{Protocol: protocol, Op: "new"}).NewVersionError()
		if !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), want) {
			t.Errorf("Refuse of protocol %d: got %v, want %q", protocol, err, want)
		}
	}
}
