package supervisor

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// testTrees is a set of trees in which the content of one file represents the devices.
type testTrees struct {
	*userTrees
	root    string
	logs    logRecorder
	content atomic.Value
}

func newTestTrees(t *testing.T) *testTrees {
	t.Helper()
	f := &testTrees{root: filepath.Join(newShmDir(t), "trees")}
	f.content.Store("1")
	s, err := newTrees(f.root, nil, f.logs.logger(), func() treeEntries {
		e := make(treeEntries)
		e.addTextFile("/d/x", f.content.Load().(string))
		return e
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	f.userTrees = s
	return f
}

func (f *testTrees) mustAcquire(t *testing.T, uid int) *userTree {
	t.Helper()
	u, err := f.acquireTree(quota.ID{UID: uid})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (f *testTrees) countTrees(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir(f.root)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestSessionsOfUserShareTree tests that the sessions of a user share a tree, which is removed after the last session,
// and that two users do not share a tree.
func TestSessionsOfUserShareTree(t *testing.T) {
	f := newTestTrees(t)
	a, again, b := f.mustAcquire(t, 1), f.mustAcquire(t, 1), f.mustAcquire(t, 2)
	if a != again || a == b || f.countTrees(t) != 2 {
		t.Fatalf("trees: got %p, %p, %p in %d directories, want the first two equal and 2 directories", a, again, b,
			f.countTrees(t))
	}
	f.content.Store("2")
	if err := f.updateAll(treeChangeTimeout); err != nil {
		t.Fatal(err)
	}
	for _, u := range []*userTree{a, b} {
		if got := u.listFiles(t); !maps.Equal(got, map[string]string{"/d": "dir", "/d/x": "2"}) {
			t.Errorf("tree of user %v: got %q, want the new content", u.user, got)
		}
	}
	f.releaseTree(a)
	if f.countTrees(t) != 2 {
		t.Error("trees before the end of the last session: got a removed one, want both")
	}
	f.releaseTree(again)
	if _, err := os.Stat(a.root); !errors.Is(err, os.ErrNotExist) || f.countTrees(t) != 1 {
		t.Errorf("tree after its last session: got %v, want ErrNotExist", err)
	}
	if c := a.startChange(f.describe); !isClosed(c.done) || f.countTrees(t) != 1 {
		t.Error("change of a removed tree: got a change, want none")
	}
	if later := f.mustAcquire(t, 1); later.root == a.root || later.listFiles(t)["/d/x"] != "2" {
		t.Errorf("next tree of the user: got %s with %q, want a new tree with content 2", later.root, later.listFiles(t))
	}
	want := os.FileMode(0o700)
	if os.Geteuid() == 0 { // user ID 0 without CAP_DAC_OVERRIDE belongs to another user
		want = 0
	}
	if st, err := os.Stat(f.root); err != nil || st.Mode().Perm() != want {
		t.Errorf("directory of the trees: got mode %v and error %v, want mode %#o", st.Mode(),
			err, want)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestBlockedTreeDelaysOnce tests that changes of the devices wait treeChangeTimeout at most once for a tree with a
// directory that a program keeps locked. The tree is updated after the unlock.
func TestBlockedTreeDelaysOnce(t *testing.T) {
	f := newTestTrees(t)
	kept, free := f.mustAcquire(t, 1), f.mustAcquire(t, 2)
	kept.mu.Lock() // simulates a change that waits for the kernel's lock of a directory
	for i, content := range []string{"2", "3", "4"} {
		f.content.Store(content)
		began := time.Now()
		if err := f.updateAll(treeChangeTimeout); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); i > 0 && took >= treeChangeTimeout {
			t.Errorf("duration of update %d after a late one: got %v, want less than %v", i, took, treeChangeTimeout)
		}
		if got := free.listFiles(t)["/d/x"]; got != content {
			t.Errorf("tree of another user: got %q, want %q", got, content)
		}
	}
	if got := f.logs.takeLines(); len(got) != 1 {
		t.Errorf("log: got %q, want one line", got)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		f.releaseTree(f.mustAcquire(t, 1)) // another session of the user does not wait, because the tree is complete
		f.releaseTree(free)
	}()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("enter by another session: got no return after 10 s, want one")
	}
	kept.mu.Unlock()
	testutil.Eventually(t, "the tree to be updated", func() bool {
		kept.changes.Lock()
		defer kept.changes.Unlock()
		return kept.changes.working == nil && kept.listFiles(t)["/d/x"] == "4"
	})
	f.content.Store("5")
	if err := f.updateAll(treeChangeTimeout); err != nil || kept.listFiles(t)["/d/x"] != "5" {
		t.Errorf("update after the unlock: got error %v and content %q, want 5", err, kept.listFiles(t))
	}
	f.releaseTree(kept)
	if got := f.logs.takeLines(); len(got) != 0 || f.countTrees(t) != 0 {
		t.Errorf("log and directories: got %q and %d, want none", got, f.countTrees(t))
	}
}

// TestFailedTreeIsMadeAgain tests that the next session tries again to make a missing or incomplete tree.
func TestFailedTreeIsMadeAgain(t *testing.T) {
	f := newTestTrees(t)
	if err := os.WriteFile(filepath.Join(f.root, "1"), nil, 0o600); err != nil { // blocks the path of the tree
		t.Fatal(err)
	}
	u, err := f.acquireTree(quota.ID{UID: 1})
	if err == nil || u.tree != nil {
		t.Errorf("enter with a blocked path: got %v, want an error and no tree", err)
	}
	full := f.describe
	f.describe = func() treeEntries {
		e := full()
		e.addTextFile("/d/x/y", "in a file") // cannot be made
		return e
	}
	again, err := f.acquireTree(quota.ID{UID: 1})
	if again != u || u.tree == nil || !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.EEXIST) {
		t.Errorf("enter with an incomplete tree: got %v, want the tree and ENOTDIR or EEXIST", err)
	}
	f.describe = full
	if _, err := f.acquireTree(quota.ID{UID: 1}); err != nil || u.listFiles(t)["/d/x"] != "1" {
		t.Errorf("enter after the repair: got error %v and content %q, want 1", err, u.listFiles(t))
	}
	for range 3 {
		f.releaseTree(u)
	}
	if f.countTrees(t) != 0 {
		t.Error("trees at the end: got one, want none")
	}
}
