package service

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// testRunDir returns a new service directory.
func testRunDir(t *testing.T) *runDir {
	t.Helper()
	d, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

// TestRemoveStaleKeepsNewDirectory tests that a sweep does not remove a directory that another service has just created
// and not locked yet.
func TestRemoveStaleKeepsNewDirectory(t *testing.T) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var closed []string
	for range 8 {
		wg.Go(func() {
			for range 20 {
				d, err := newRunDir()
				if err != nil {
					t.Error(err)
					return
				}
				d.removeStaleDirs()
				if _, err := os.Stat(d.path); err != nil {
					t.Error(err)
				}
				d.close() // otherwise the sweep of another service removes it
				mu.Lock()
				closed = append(closed, d.path)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, path := range closed {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("directory after close: got %v, want ErrNotExist", err)
		}
	}
}

// TestRemoveIfUnheld tests that only unlocked directories of this user's services, directly below shmRoot, are removed.
func TestRemoveIfUnheld(t *testing.T) {
	d := testRunDir(t)
	removeIfUnheld(filepath.Base(d.path))
	if _, err := os.Stat(d.path); err != nil {
		t.Errorf("locked directory: got %v, want it kept", err)
	}
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "dear"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := runDirPrefix(os.Geteuid()) + "111111111"
	if err := os.Symlink(home, filepath.Join(shmRoot, link)); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(filepath.Join(shmRoot, link))
	up, err := filepath.Rel(shmRoot, home)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..",
		home, up, link, link + "/.", runDirPrefix(os.Geteuid()) + "1/../" + link} {
		removeIfUnheld(name)
	}
	if _, err := os.Stat(filepath.Join(home, "dear")); err != nil {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		return
	}
	for _, other := range []struct {
		name string
		uid  int
	}{{runDirPrefix(0) + "222222222", 65533}, {runDirPrefix(65533) + "222222222", 0}} {
		path := filepath.Join(shmRoot, other.name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chown(path, other.uid, -1)); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		removeIfUnheld(other.name)
		if _, err := os.Stat(path); err != nil {
			t.Errorf("directory %s of user %d: got %v, want it kept", other.name, other.uid, err)
		}
	}
}

// TestInvalidSessionNameIsRefused tests that a launcher accepts a session name from its service only in the form of
// that service.
func TestInvalidSessionNameIsRefused(t *testing.T) {
	const good = "/dev/shm/verbena-7-123/run/4-56"
	if got, err := checkSessionName(good, 7); err != nil || got != good {
		t.Errorf("SessionName: got %q and error %v, want the name", got, err)
	}
	for _, name := range []string{
		"", "/", "/dev/shm", "/dev/shm/verbena-7-123/run/", "/dev/shm/verbena-7-123/run", "/dev/shm/verbena-7-123",
		good + "/", good + "/x",
		"/dev/shm/verbena-7-123/run/4", "/dev/shm/verbena-7-123/../4-56", "/dev/shm/../run/4-56",
		"/dev/shm/verbena-8-123/run/4-56",
		"/dev/shm/verbena-7/run/4-56", "/dev/shm/verbena-7-x/run/4-56", "/dev/shm/verbena-7-1 /run/4-56",
		"/tmp/verbena-7-123/run/4-56", "verbena-7-123/run/4-56", good + "\n",
	} {
		if got, err := checkSessionName(name, 7); !errors.Is(err, syscall.EPERM) {
			t.Errorf("SessionName of %q: got %q, %v, want EPERM", name, got, err)
		}
	}
}
