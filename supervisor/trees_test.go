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

// forest is a set of trees in which the content of one file represents the devices.
type forest struct {
	*trees
	root    string
	logs    logBook
	content atomic.Value
}

func newForest(t *testing.T) *forest {
	t.Helper()
	f := &forest{root: filepath.Join(shmDir(t), "trees")}
	f.content.Store("1")
	s, err := newTrees(f.root, nil, f.logs.logger(), func() entries {
		e := make(entries)
		e.text("/d/x", f.content.Load().(string))
		return e
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	f.trees = s
	return f
}

func (f *forest) mustEnter(t *testing.T, uid int) *userTree {
	t.Helper()
	u, err := f.enter(quota.ID{UID: uid})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (f *forest) count(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir(f.root)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestTreeOfEachUser tests that the sessions of a user share a tree, which is removed after the last session, and
// that two users do not share a tree.
func TestTreeOfEachUser(t *testing.T) {
	f := newForest(t)
	a, again, b := f.mustEnter(t, 1), f.mustEnter(t, 1), f.mustEnter(t, 2)
	if a != again || a == b || f.count(t) != 2 {
		t.Fatalf("trees: got %p, %p, %p in %d directories, want the first two equal and 2 directories", a, again, b, f.count(t))
	}
	f.content.Store("2")
	if err := f.update(); err != nil {
		t.Fatal(err)
	}
	for _, u := range []*userTree{a, b} {
		if got := u.list(t); !maps.Equal(got, map[string]string{"/d": "dir", "/d/x": "2"}) {
			t.Errorf("tree of user %v: got %q, want the new content", u.user, got)
		}
	}
	f.leave(a)
	if f.count(t) != 2 {
		t.Error("trees before the end of the last session: got a removed one, want both")
	}
	f.leave(again)
	if _, err := os.Stat(a.root); !errors.Is(err, os.ErrNotExist) || f.count(t) != 1 {
		t.Errorf("tree after its last session: got %v, want ErrNotExist", err)
	}
	if c := a.change(f.describe); !isClosed(c.done) || f.count(t) != 1 {
		t.Error("change of a removed tree: got a change, want none")
	}
	if later := f.mustEnter(t, 1); later.root == a.root || later.list(t)["/d/x"] != "2" {
		t.Errorf("next tree of the user: got %s with %q, want a new tree with content 2", later.root, later.list(t))
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

// TestTreeThatIsKept tests that changes of the devices wait treeTimeout at most once for a tree with a
// directory that a program keeps locked. The tree is updated after the unlock.
func TestTreeThatIsKept(t *testing.T) {
	f := newForest(t)
	kept, free := f.mustEnter(t, 1), f.mustEnter(t, 2)
	kept.mu.Lock() // simulates a change that waits for the kernel's lock of a directory
	for i, content := range []string{"2", "3", "4"} {
		f.content.Store(content)
		began := time.Now()
		if err := f.update(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); i > 0 && took >= treeTimeout {
			t.Errorf("duration of update %d after a late one: got %v, want less than %v", i, took, treeTimeout)
		}
		if got := free.list(t)["/d/x"]; got != content {
			t.Errorf("tree of another user: got %q, want %q", got, content)
		}
	}
	if got := f.logs.take(); len(got) != 1 {
		t.Errorf("log: got %q, want one line", got)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		f.leave(f.mustEnter(t, 1)) // another session of the user does not wait, because the tree is complete
		f.leave(free)
	}()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("enter by another session: got no return after 10 s, want one")
	}
	kept.mu.Unlock()
	testutil.Eventually(t, "the tree to be updated", func() bool { return kept.list(t)["/d/x"] == "4" })
	f.content.Store("5")
	if err := f.update(); err != nil || kept.list(t)["/d/x"] != "5" {
		t.Errorf("update after the unlock: got error %v and content %q, want 5", err, kept.list(t))
	}
	f.leave(kept)
	if got := f.logs.take(); len(got) != 0 || f.count(t) != 0 {
		t.Errorf("log and directories: got %q and %d, want none", got, f.count(t))
	}
}

// TestTreeOfAFullDisk tests that the next session tries again to make a missing or incomplete tree.
func TestTreeOfAFullDisk(t *testing.T) {
	f := newForest(t)
	if err := os.WriteFile(filepath.Join(f.root, "1"), nil, 0o600); err != nil { // blocks the path of the tree
		t.Fatal(err)
	}
	u, err := f.enter(quota.ID{UID: 1})
	if err == nil || u.tree != nil {
		t.Errorf("enter with a blocked path: got %v, want an error and no tree", err)
	}
	full := f.describe
	f.describe = func() entries {
		e := full()
		e.text("/d/x/y", "in a file") // cannot be made
		return e
	}
	again, err := f.enter(quota.ID{UID: 1})
	if again != u || u.tree == nil || !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.EEXIST) {
		t.Errorf("enter with an incomplete tree: got %v, want the tree and ENOTDIR or EEXIST", err)
	}
	f.describe = full
	if _, err := f.enter(quota.ID{UID: 1}); err != nil || u.list(t)["/d/x"] != "1" {
		t.Errorf("enter after the repair: got error %v and content %q, want 1", err, u.list(t))
	}
	for range 3 {
		f.leave(u)
	}
	if f.count(t) != 0 {
		t.Error("trees at the end: got one, want none")
	}
}
