package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/reopen"
)

// userTrees holds a tree of virtual files for each user with sessions. It also holds a tree for the service's own user,
// which shows whether there is enough space.
//
// A program that lists a directory into memory that blocks access, such as a mapped FUSE file, holds the kernel's
// lock of the directory. Each change in the directory then waits for that lock. While a change waits, each lookup of
// an uncached name waits too. Programs can reach only the directories of their own user. A program can therefore
// block only calls of its own user, and the thread that updates that user's tree. A change of the devices waits for a
// limited time.
type userTrees struct {
	above    *os.Root // directory of the trees
	dir      *os.File // descriptor of above, through which programs' files are opened
	mounted  bool     // dir is a separate mount, from which no path leads to this process's root
	describe func() treeEntries
	own      quota.ID
	log      *slog.Logger

	mu    sync.Mutex
	made  uint64
	users map[quota.ID]*userTree
}

// userTree is the tree of a user with sessions.
//
//	new ──make──▶ made ──update, after each change of the devices──▶ made
//	                └──the last session leaves──▶ removed
type userTree struct {
	user   quota.ID
	number uint64

	sessions int // guarded by trees.mu

	making sync.Mutex // held while the tree is made
	*tree             // nil if the tree was not made yet, or could not be made

	changes struct {
		sync.Mutex
		working *treeChange // the change in progress
		next    *treeChange // the next change
		err     error       // error of the last change
		late    bool        // working has timed out, and no thread waits for it
		ended   bool        // the tree is being removed
	}
}

// treeChange is a change of a tree. done is closed at the end of the change.
type treeChange struct {
	done chan struct{}
	err  error
}

// A change of the devices waits for the trees for at most treeChangeTimeout plus treeDeviceTimeout for each device.
const (
	treeChangeTimeout = time.Second
	treeDeviceTimeout = 10 * time.Millisecond
)

// newTrees makes the empty directory of the trees. Without a ledger all users share one tree.
func newTrees(root string, ledger *quota.Ledger, log *slog.Logger, describe func() treeEntries) (_ *userTrees,
	err error) {
	s := &userTrees{describe: describe, own: quota.AllUsers, log: log, users: make(map[quota.ID]*userTree)}
	if ledger != nil {
		s.own = quota.ID{UID: os.Geteuid()}
	}
	fail := func(err error) (*userTrees, error) {
		s.close()
		return nil, fmt.Errorf("make the directory of the virtual files: %w", err)
	}
	if err := makeTreesDir(root); err != nil {
		return fail(err)
	}
	if s.above, err = os.OpenRoot(root); err != nil {
		return fail(err)
	}
	if s.dir, err = openDirectory(root); err != nil {
		return fail(err)
	}
	if m := detachedMount(s.dir); m != nil {
		s.dir.Close()
		s.dir, s.mounted = m, true
	}
	return s, nil
}

// makeTreesDir makes a directory that no program can search. Programs therefore cannot get from their own tree to
// another user's tree by "..". Programs with this process's user ID but without CAP_DAC_OVERRIDE may belong to
// another user, for example user ID 0 in a container. The owner therefore has no rights on the directory either, if
// this process does not need them.
func makeTreesDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return errors.Join(reopen.DenyReopen(int(d.Fd())), d.Close())
}

func (s *userTrees) close() {
	if s.above != nil {
		s.above.Close()
	}
	if s.dir != nil {
		s.dir.Close()
	}
}

func openDirectory(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// detachedMount returns a directory as a read-only mount that is not attached to the file system, so no path leads
// up from it. It returns nil if this process may not mount (open_tree(2); CAP_SYS_ADMIN). A confined process may
// not mount.
func detachedMount(dir *os.File) *os.File {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil
	}
	attr := unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), dir.Name())
}

// acquireTree returns the tree of a user, and makes the tree for the first session. After an error the tree is
// incomplete, or t.tree is nil if it could not be made. Each call of enter needs a call of leave, also after an
// error. acquireTree can block as long as the user's programs lock a directory of the tree.
func (s *userTrees) acquireTree(id quota.ID) (t *userTree, err error) {
	s.mu.Lock()
	if t = s.users[id]; t == nil {
		s.made++
		t = &userTree{user: id, number: s.made}
		s.users[id] = t
	}
	t.sessions++
	s.mu.Unlock()

	t.making.Lock()
	defer t.making.Unlock()
	if t.tree == nil {
		made, err := newTree(s.above, s.dir, strconv.FormatUint(t.number, 10))
		if err != nil {
			return t, err
		}
		s.mu.Lock() // updates of the devices read this field
		t.tree = made
		s.mu.Unlock()
	} else if t.isLastChangeComplete() {
		return t, nil
	}
	c := t.startChange(s.describe)
	<-c.done
	return t, c.err
}

// releaseTree ends a session's use of the tree, and removes the tree after the last session. releaseTree can block like
// enter.
func (s *userTrees) releaseTree(t *userTree) {
	s.mu.Lock()
	t.sessions--
	last := t.sessions == 0
	if last {
		delete(s.users, t.user)
	}
	s.mu.Unlock()
	if !last || t.tree == nil {
		return
	}
	t.finishChanges()
	if err := t.removeTree(); err != nil && !errors.Is(err, os.ErrClosed) {
		s.log.Warn("the virtual files of a user were not removed", "user", t.user, "err", err)
	}
}

// updateAll updates all trees to the current devices, and returns an error for incomplete trees. It waits for at most
// limit. Trees that programs block are updated later.
func (s *userTrees) updateAll(limit time.Duration) error {
	s.mu.Lock()
	var all []*userTree
	for _, t := range s.users {
		if t.tree != nil {
			all = append(all, t)
		}
	}
	s.mu.Unlock()
	changes := make([]*treeChange, len(all))
	for i, t := range all {
		changes[i] = t.startChange(s.describe)
	}
	timeout, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var errs []error
	for i, t := range all {
		if t.waitForChange(changes[i], timeout.Done()) {
			errs = append(errs, changes[i].err)
			continue
		}
		if t.markLate() {
			s.log.Warn("the virtual files of a user are not up to date: a program of the user may keep a directory locked; they are updated when the program ends",
				"user", t.user, "after", limit)
		}
	}
	return errors.Join(errs...)
}

// startChange starts an update of the tree to the entries that describe returns.
func (t *userTree) startChange(describe func() treeEntries) *treeChange {
	t.changes.Lock()
	defer t.changes.Unlock()
	if c := t.changes.next; c != nil {
		return c
	}
	c := &treeChange{done: make(chan struct{})}
	switch {
	case t.changes.ended:
		close(c.done)
	case t.changes.working == nil:
		t.changes.working = c
		go t.applyChanges(c, describe)
	default:
		t.changes.next = c
	}
	return c
}

// isLastChangeComplete reports whether the last change was complete.
func (t *userTree) isLastChangeComplete() bool {
	t.changes.Lock()
	defer t.changes.Unlock()
	return t.changes.err == nil
}

// applyChanges makes pending changes, beginning with c.
func (t *userTree) applyChanges(c *treeChange, describe func() treeEntries) {
	for c != nil {
		c.err = t.updateEntries(describe)
		t.changes.Lock()
		t.changes.err, t.changes.late = c.err, false
		t.changes.working, t.changes.next = t.changes.next, nil
		close(c.done)
		c = t.changes.working
		t.changes.Unlock()
	}
}

// waitForChange waits until a change has ended or the channel is closed. If the tree is already late, waitForChange
// does not wait. waitForChange reports whether the change has ended.
func (t *userTree) waitForChange(c *treeChange, timeout <-chan struct{}) bool {
	t.changes.Lock()
	late := t.changes.late
	t.changes.Unlock()
	if !late {
		select {
		case <-c.done:
			return true
		case <-timeout:
		}
	}
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// markLate marks the tree as late, and reports whether the tree was not late before.
func (t *userTree) markLate() bool {
	t.changes.Lock()
	defer t.changes.Unlock()
	was := t.changes.late
	t.changes.late = t.changes.working != nil
	return t.changes.late && !was
}

// finishChanges waits for all requested changes, and refuses further changes.
func (t *userTree) finishChanges() {
	t.changes.Lock()
	t.changes.ended = true
	working, next := t.changes.working, t.changes.next
	t.changes.Unlock()
	for _, c := range []*treeChange{working, next} {
		if c != nil {
			<-c.done
		}
	}
}
