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

// trees has a tree of virtual files for each user with sessions, and one for the service's own user, which shows
// whether there is room for them.
//
// A program that lists a directory into memory that does not answer, such as that of a FUSE file, keeps the kernel's
// lock of the directory. Each change in the directory waits for that, and then each lookup of a name that is not
// cached. Programs reach the directories of their own user only, so that they hold up only calls of that user, and the
// thread that brings the user's tree up to the devices. The devices wait for no tree longer than treePatience.
type trees struct {
	above    *os.Root // the directory with the trees
	dir      *os.File // above, for programs' files
	mounted  bool     // dir is a mount of its own, so that there is no way up from it to this process's root
	describe func() entries
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

	sessions int // of trees.mu

	making sync.Mutex // held while the tree is made
	*tree             // nil: it has not been made yet, or could not be

	changes struct {
		sync.Mutex
		working *change // that brings the tree up to the devices
		next    *change // that does so afterwards
		err     error   // of the last one
		late    bool    // working has not ended in time, and no thread waits for it
		ended   bool    // the tree is being removed
	}
}

// change is one of a tree. It has ended when done is closed.
type change struct {
	done chan struct{}
	err  error
}

// treePatience is the longest time that a change of the devices waits for the trees.
const treePatience = time.Second

// newTrees makes the directory of the trees, which is empty. Without a ledger all users share one tree.
func newTrees(root string, ledger *quota.Ledger, log *slog.Logger, describe func() entries) (_ *trees, err error) {
	s := &trees{describe: describe, own: quota.All, log: log, users: make(map[quota.ID]*userTree)}
	if ledger != nil {
		s.own = quota.ID{UID: os.Geteuid()}
	}
	fail := func(err error) (*trees, error) {
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

// makeTreesDir makes a directory that no program can search: programs cannot get from their own tree to another user's
// by "..". Programs of this process's user id without CAP_DAC_OVERRIDE, such as a container's user id 0, may be another
// user's, so that the owner has no rights either where this process needs none.
func makeTreesDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return errors.Join(reopen.Withhold(int(d.Fd())), d.Close())
}

func (s *trees) close() {
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

// detachedMount returns a directory as a mount that is nowhere in the file system, so that there is no way up from it,
// and that may only be read; nil where this process may not mount (open_tree(2); CAP_SYS_ADMIN). A confined process may
// not either.
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

// enter returns the tree of a user, and makes it for the first session. The error is of a tree that lacks something, or
// that could not be made, so that t.tree is nil. Each enter takes a leave, also after an error. It may sleep as long as
// the user's programs keep a directory of the tree.
func (s *trees) enter(id quota.ID) (t *userTree, err error) {
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
		s.mu.Lock() // the devices look at it
		t.tree = made
		s.mu.Unlock()
	} else if t.whole() {
		return t, nil
	}
	c := t.change(s.describe)
	<-c.done
	return t, c.err
}

// leave ends what enter has begun, and removes the tree after the last session. It may sleep as enter does.
func (s *trees) leave(t *userTree) {
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
	t.settle()
	if err := t.remove(); err != nil && !errors.Is(err, os.ErrClosed) {
		s.log.Warn("the virtual files of a user are left behind", "user", t.user, "err", err)
	}
}

// update brings the trees up to the devices. The error is of the trees that lack something. It waits for treePatience
// for those that a program keeps, which are brought up later.
func (s *trees) update() error {
	s.mu.Lock()
	var all []*userTree
	for _, t := range s.users {
		if t.tree != nil {
			all = append(all, t)
		}
	}
	s.mu.Unlock()
	changes := make([]*change, len(all))
	for i, t := range all {
		changes[i] = t.change(s.describe)
	}
	patience, cancel := context.WithTimeout(context.Background(), treePatience)
	defer cancel()
	var errs []error
	for i, t := range all {
		if t.wait(changes[i], patience.Done()) {
			errs = append(errs, changes[i].err)
			continue
		}
		if t.isLate() {
			s.log.Warn("the virtual files of a user are not up to date: a program of the user may keep a directory locked; they will be when it ends",
				"user", t.user, "after", treePatience)
		}
	}
	return errors.Join(errs...)
}

// change has the tree brought up to what describe returns from now on.
func (t *userTree) change(describe func() entries) *change {
	t.changes.Lock()
	defer t.changes.Unlock()
	if c := t.changes.next; c != nil {
		return c
	}
	c := &change{done: make(chan struct{})}
	switch {
	case t.changes.ended:
		close(c.done)
	case t.changes.working == nil:
		t.changes.working = c
		go t.work(c, describe)
	default:
		t.changes.next = c
	}
	return c
}

// whole reports whether the last change has left nothing out.
func (t *userTree) whole() bool {
	t.changes.Lock()
	defer t.changes.Unlock()
	return t.changes.err == nil
}

// work makes the changes, of which c is the first.
func (t *userTree) work(c *change, describe func() entries) {
	for c != nil {
		c.err = t.update(describe)
		t.changes.Lock()
		t.changes.err, t.changes.late = c.err, false
		t.changes.working, t.changes.next = t.changes.next, nil
		close(c.done)
		c = t.changes.working
		t.changes.Unlock()
	}
}

// wait waits for a change until patience ends, and not at all if the tree is late already. It reports whether the
// change has been made.
func (t *userTree) wait(c *change, patience <-chan struct{}) bool {
	t.changes.Lock()
	late := t.changes.late
	t.changes.Unlock()
	if !late {
		select {
		case <-c.done:
			return true
		case <-patience:
		}
	}
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// isLate notes that the tree is late, and reports whether that is new.
func (t *userTree) isLate() bool {
	t.changes.Lock()
	defer t.changes.Unlock()
	was := t.changes.late
	t.changes.late = t.changes.working != nil
	return t.changes.late && !was
}

// settle waits for the changes that have been asked for, and refuses further ones.
func (t *userTree) settle() {
	t.changes.Lock()
	t.changes.ended = true
	working, next := t.changes.working, t.changes.next
	t.changes.Unlock()
	for _, c := range []*change{working, next} {
		if c != nil {
			<-c.done
		}
	}
}
