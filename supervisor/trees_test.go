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

// forest is a trees whose devices are represented by the content of one file.
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

// TestTreeOfEachUser tests that the sessions of a user share a tree, which is removed after the last one, and that
// sessions of two users do not share one.
func TestTreeOfEachUser(t *testing.T) {
	f := newForest(t)
	a, again, b := f.mustEnter(t, 1), f.mustEnter(t, 1), f.mustEnter(t, 2)
	if a != again || a == b || f.count(t) != 2 {
		t.Fatalf("the trees %p, %p, %p in %d directories; want the first two alike, in two", a, again, b, f.count(t))
	}
	f.content.Store("2")
	if err := f.update(); err != nil {
		t.Fatal(err)
	}
	for _, u := range []*userTree{a, b} {
		if got := u.list(t); !maps.Equal(got, map[string]string{"/d": "dir", "/d/x": "2"}) {
			t.Errorf("user %v has %q", u.user, got)
		}
	}
	f.leave(a)
	if f.count(t) != 2 {
		t.Error("the tree was removed before the end of its last session")
	}
	f.leave(again)
	if _, err := os.Stat(a.root); !errors.Is(err, os.ErrNotExist) || f.count(t) != 1 {
		t.Errorf("the tree exists after its last session: %v", err)
	}
	if c := a.change(f.describe); !isClosed(c.done) || f.count(t) != 1 {
		t.Error("change of a removed tree: got a change, want none")
	}
	if later := f.mustEnter(t, 1); later.root == a.root || later.list(t)["/d/x"] != "2" {
		t.Errorf("next tree of the user: got %s with %q, want a new one with 2", later.root, later.list(t))
	}
	want := os.FileMode(0o700)
	if os.Geteuid() == 0 { // user ID 0 without CAP_DAC_OVERRIDE is another user
		want = 0
	}
	if st, err := os.Stat(f.root); err != nil || st.Mode().Perm() != want {
		t.Errorf("the directory of the trees: %v, %v, want mode %#o, which separates the users", st.Mode(),
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

// TestTreeThatIsKept tests that changes of the devices wait at most once for a tree with a directory locked by a
// program, for treeTimeout. The tree is updated after the unlock.
func TestTreeThatIsKept(t *testing.T) {
	f := newForest(t)
	kept, free := f.mustEnter(t, 1), f.mustEnter(t, 2)
	kept.mu.Lock() // acts as a change that waits for the kernel's lock of a directory
	for i, content := range []string{"2", "3", "4"} {
		f.content.Store(content)
		began := time.Now()
		if err := f.update(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); i > 0 && took >= treeTimeout {
			t.Errorf("update %d after a late one: got %v, want less than %v", i, took, treeTimeout)
		}
		if got := free.list(t)["/d/x"]; got != content {
			t.Errorf("another user sees %q, want %q", got, content)
		}
	}
	if got := f.logs.take(); len(got) != 1 {
		t.Errorf("logged %q, want one line", got)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		f.leave(f.mustEnter(t, 1)) // another session of the user does not wait, since the tree is complete
		f.leave(free)
	}()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("another session waits for the tree")
	}
	kept.mu.Unlock()
	testutil.Eventually(t, "the tree to be updated", func() bool { return kept.list(t)["/d/x"] == "4" })
	f.content.Store("5")
	if err := f.update(); err != nil || kept.list(t)["/d/x"] != "5" {
		t.Errorf("update after the unlock: got %v, %q", err, kept.list(t))
	}
	f.leave(kept)
	if got := f.logs.take(); len(got) != 0 || f.count(t) != 0 {
		t.Errorf("logged %q; got %d directories", got, f.count(t))
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
		t.Errorf("a tree that cannot be made: %v", err)
	}
	full := f.describe
	f.describe = func() entries {
		e := full()
		e.text("/d/x/y", "in a file") // cannot be made
		return e
	}
	again, err := f.enter(quota.ID{UID: 1})
	if again != u || u.tree == nil || !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.EEXIST) {
		t.Errorf("an incomplete tree: %v", err)
	}
	f.describe = full
	if _, err := f.enter(quota.ID{UID: 1}); err != nil || u.list(t)["/d/x"] != "1" {
		t.Errorf("enter with room: got error %v and %q, want 1", err, u.list(t))
	}
	for range 3 {
		f.leave(u)
	}
	if f.count(t) != 0 {
		t.Error("the tree was not removed")
	}
}
