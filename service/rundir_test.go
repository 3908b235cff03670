package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"verbena/internal/testutil"
)

// testRunDir is a service's directory with a session in it.
func testRunDir(t *testing.T) (d *runDir, session string) {
	t.Helper()
	d, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	session = filepath.Join(d.path, "run", "1-2")
	if err := os.MkdirAll(session, 0o755); err != nil {
		t.Fatal(err)
	}
	return d, session
}

// Directories that another service makes meanwhile are not swept away before it holds them.
func TestRunDirsAtOnce(t *testing.T) {
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
				sweepRunDirs()
				if _, err := os.Stat(d.path); err != nil {
					t.Error(err)
				}
				d.close() // or another's sweep does it
				mu.Lock()
				closed = append(closed, d.path)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, path := range closed {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after its end: got %v, want ErrNotExist", err)
		}
	}
}

// Only directories of this user's services go, directly below shmRoot, and only if nobody holds them.
func TestRemoveIfUnheld(t *testing.T) {
	d, _ := testRunDir(t)
	removeIfUnheld(filepath.Base(d.path))
	if _, err := os.Stat(d.path); err != nil {
		t.Errorf("a directory that is held: %v", err)
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
			t.Errorf("%s of user %d: %v", other.name, other.uid, err)
		}
	}
}

// A launcher takes from the service that it talks to the directory of a session, and no other.
func TestOpenSessionDir(t *testing.T) {
	uid := os.Geteuid()
	d, session := testRunDir(t)
	dir, err := openSessionDir(session, uid)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "run", "1-2"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(d.path, "run", "3-4")
	if err := os.Symlink(filepath.Join(home, "run", "1-2"), link); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(d.path, "run", "5-6")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{
		"home": filepath.Join(home, "run",
			"1-2"), "nothing": "", "the root": "/", "not clean": filepath.Dir(session) + "/../run/1-2",
		"a slash": session + "/", "too deep": session + "/x", "not deep enough": filepath.Dir(session), "a link": link,
		"writable for all": open, "up": shmRoot + "/../run/1-2", "of another name": shmRoot + "/verbena/run/1-2",
	} {
		if o, err := openSessionDir(path, uid); !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.ENOTDIR) &&
			!errors.Is(err, syscall.ELOOP) {
			t.Errorf("%s: got %v, %v, want EPERM", what, o, err)
		}
	}
	if o, err := openSessionDir(session, uid+1); !errors.Is(err, syscall.EPERM) {
		t.Errorf("of a service that is another user's: got %v, %v, want EPERM", o, err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(session, 65533, -1); err != nil {
			t.Fatal(err)
		}
		if o, err := openSessionDir(session, uid); !errors.Is(err, syscall.EPERM) {
			t.Errorf("a session directory that is not the service's: got %v, %v, want EPERM", o, err)
		}
	}
}

// A guardian keeps the directory, and the last to hold it removes it.
func TestHold(t *testing.T) {
	d, session := testRunDir(t)
	dir, err := openSessionDir(session, os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	release := dir.Hold()
	d.close()
	if _, err := os.Stat(session); err != nil {
		t.Errorf("while the guardian holds it: %v", err)
	}
	release()
	if _, err := os.Stat(d.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("afterwards: got %v, want ErrNotExist", err)
	}
}

// A guardian opens ordinary files of its user's, and nothing that has been put in their place.
func TestQueues(t *testing.T) {
	_, session := testRunDir(t)
	dir, err := openSessionDir(session, os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	victim := filepath.Join(t.TempDir(), "victim")
	queue := filepath.Join(session, "uverbs0.1.queues")
	if err := errors.Join(os.WriteFile(victim, nil, 0o600), os.WriteFile(queue, nil, 0o600),
		os.Symlink(victim, filepath.Join(session, "uverbs0.2.queues")), syscall.Mkfifo(filepath.Join(session,
			"uverbs0.3.queues"), 0o600)); err != nil {
		t.Fatal(err)
	}
	files, err := dir.Queues()
	if err == nil {
		t.Error("what is no queue file is not reported")
	}
	for _, f := range files {
		defer f.Close()
	}
	if len(files) != 1 || !named(files[0], queue) {
		t.Errorf("got %v", files)
	}
	// Another directory that has got the path meanwhile is not looked into.
	if err := errors.Join(os.Rename(session, session+"0"), os.Mkdir(session, 0o755)); err != nil {
		t.Fatal(err)
	}
	if files, _ = dir.Queues(); len(files) != 1 {
		t.Errorf("after a swap: got %v", files)
	}
	for _, f := range files {
		f.Close()
	}
}

// Root, in its own service, completes the queues of a program that has become another user; in another's, its own
// alone.
func TestQueuesOfOthers(t *testing.T) {
	testutil.NeedRoot(t, "to be a service for another user")
	for uid, want := range map[int]int{0: 1, 65533: 0} {
		d, session := testRunDir(t)
		queue := filepath.Join(session, fmt.Sprintf("uverbs0.%d.queues", uid))
		if err := errors.Join(os.WriteFile(queue, nil, 0o600), os.Chown(queue, 65532, -1)); err != nil {
			t.Fatal(err)
		}
		dir, err := openSessionDir(session, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir.uid = uid
		files, _ := dir.Queues()
		if len(files) != want {
			t.Errorf("service of user %d: %d files, want %d", uid, len(files), want)
		}
		for _, f := range files {
			f.Close()
		}
		dir.Close()
		d.close()
	}
}
