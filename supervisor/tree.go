package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// entry is what a virtual path is: exactly one of a directory, a file, a link or a device node.
type entry struct {
	dir bool
	// read makes the content of a file. An error means that reading it fails.
	read func() (string, error)
	// deferred: the file is made when a program first looks at it, or at the directories above; see tree.complete.
	deferred bool
	link     string // target of a symbolic link, relative
	node     *node
	// id, of a directory, changes when what it stands for is another thing of the same name. (rdma-core takes the
	// directory's time stamps for that.)
	id any
}

// node is a device file.
type node struct {
	device string // its name to the server
	minor  uint32
	cm     bool // rdma_cm
}

// major is the device number's other half.
func (n *node) major() uint32 {
	if n.cm {
		return miscMajor
	}
	return verbsMajor
}

// entries are the virtual paths that there are, absolute and clean.
type entries map[string]*entry

// at adds an entry and the directories above it.
func (t entries) at(path string, e *entry) {
	t[path] = e
	if up := filepath.Dir(path); up != "/" && t[up] == nil {
		t.at(up, &entry{dir: true})
	}
}

// free reports whether a file can be added: nothing has its path, and what is above it are directories.
func (t entries) free(path string) bool {
	if t[path] != nil {
		return false
	}
	for up := filepath.Dir(path); up != "/"; up = filepath.Dir(up) {
		if e := t[up]; e != nil {
			return e.dir
		}
	}
	return true
}

func (t entries) file(path string, read func() (string, error)) { t.at(path, &entry{read: read}) }

func (t entries) text(path, content string) {
	t.file(path, func() (string, error) { return content, nil })
}

// resolve follows links, none of which leads to another. The last component is not followed if nofollow.
func (t entries) resolve(path string, nofollow bool) (string, *entry) {
	for end := 1; end < len(path); end++ {
		if path[end] != '/' {
			continue
		}
		if e := t[path[:end]]; e != nil && e.link != "" {
			return t.resolve(filepath.Join(filepath.Dir(path[:end]), e.link)+path[end:], nofollow)
		}
	}
	e := t[path]
	if e != nil && e.link != "" && !nofollow {
		path = filepath.Join(filepath.Dir(path), e.link)
		e = t[path]
	}
	return path, e
}

// tree is the part of /dev and /sys that programs of one user see, as files in a directory: once a program has a
// descriptor of a file or directory in it, everything goes on natively. Device nodes are placeholders there that cannot
// be opened. A program can keep the kernel's lock of a directory, so that every method below that may sleep may do so
// without bound; see trees.
type tree struct {
	root  string
	name  string   // of root in above
	above *os.Root // by which files are changed
	// the same, by which programs' files are opened: of a mount that may only be read, if the kernel lets this process
	// make one
	dir     *os.File
	current atomic.Pointer[entries]

	places atomic.Pointer[places]

	// completed: deferred files are made like others from now on.
	completed atomic.Bool

	mu    sync.Mutex
	shown map[string]string // content of the files there are
	temps int
}

// Files with these contents are many in a table of GIDs that is mostly empty; they share one inode.
const (
	noGID   = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	nothing = ""
)

// newTree makes an empty tree in a new directory of above, which is open as dir, too. It owns the new directory.
func newTree(above *os.Root, dir *os.File, name string) (*tree, error) {
	t := &tree{root: filepath.Join(above.Name(), name), name: name, above: above, dir: dir, shown: make(map[string]string)}
	t.current.Store(&entries{})
	t.places.Store(&places{})
	if err := errors.Join(
		makeDir(t.root),
		makeDir(t.common("")),
		makeFile(t.common("nogid"), noGID, 0o444),
		makeFile(t.common("nothing"), nothing, 0o444)); err != nil {
		return nil, errors.Join(fmt.Errorf("make the tree of virtual files: %w", err), t.remove())
	}
	return t, nil
}

// remove removes the tree.
func (t *tree) remove() error { return t.above.RemoveAll(t.name) }

// open opens the file of a virtual path after links, whatever programs that may write to the tree, which are this
// user's, have put in its place.
//
//verbena:allow open only files of the tree are opened, with O_CLOEXEC
func (t *tree) open(path string, how int) (int, error) {
	return unix.Openat2(int(t.dir.Fd()), t.name+path, &unix.OpenHow{
		Flags: uint64(
			how | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// makeDir makes a directory that all users may read, whatever the umask.
func makeDir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

func makeFile(path, content string, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NOCTTY, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

func (t *tree) common(name string) string { return filepath.Join(t.root, ".common", name) }

// real returns the path of the file of a virtual path.
func (t *tree) real(path string) string { return t.root + path }

// lookup returns the entry of a clean path, nil if there is none, and the path after links; the last component is not
// followed if nofollow.
func (t *tree) lookup(path string, nofollow bool) (string, *entry) {
	return (*t.current.Load()).resolve(path, nofollow)
}

// update changes the tree to what describe returns. Directories that stay keep their time stamps as far as nothing
// comes or goes in them. After an error the tree lacks what could not be made, and the next update makes that. It may
// sleep.
func (t *tree) update(describe func() entries) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, want := *t.current.Load(), describe()
	var errs []error
	gone := func(path string) bool {
		h, w := have[path], want[path]
		return w == nil || w.id != h.id || w.dir != h.dir || w.link != h.link || (w.node == nil) != (h.node == nil)
	}
	kept := make(entries)
	for _, path := range slices.Sorted(maps.Keys(have)) {
		up := filepath.Dir(path)
		switch {
		case have[up] != nil && kept[up] == nil: // went with its directory
			delete(t.shown, path)
		case gone(path):
			delete(t.shown, path)
			errs = append(errs, t.above.RemoveAll(t.name+path))
		default:
			kept[path] = have[path]
		}
	}
	made := maps.Clone(want)
	full := false
	for _, path := range slices.Sorted(maps.Keys(want)) {
		w := want[path]
		if full && kept[path] == nil {
			delete(made, path)
			continue
		}
		var err error
		switch {
		case w.read != nil:
			if _, there := t.shown[path]; there || !w.deferred || t.completed.Load() {
				err = t.show(path, w.content())
			}
		case kept[path] != nil:
		case w.dir:
			err = makeDir(t.real(path))
		case w.link != "":
			err = os.Symlink(w.link, t.real(path))
		default:
			err = makeFile(t.real(path), "", 0)
		}
		if err != nil && kept[path] == nil {
			delete(made, path)
		}
		full = full || errors.Is(err, unix.ENOSPC) // one error says it for all the others
		errs = append(errs, err)
	}
	t.current.Store(&made)
	t.places.Store(t.locate(made))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("update the tree of virtual files: %w", err)
	}
	return nil
}

// content returns the content of an entry's file, nothing if reading it fails.
func (e *entry) content() string {
	s, err := e.read()
	if err != nil {
		return nothing
	}
	return s
}

// complete makes the deferred files, since a program is about to have a directory open, from which it reaches them
// without being trapped. Most programs never do, and to make the thousands of files of a GID table would be most of
// what it takes to start a service or to reset a device. It stays so: the program may keep the directory. It may sleep.
func (t *tree) complete() error {
	if t.completed.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for path, e := range *t.current.Load() {
		if _, there := t.shown[path]; e.deferred && !there {
			errs = append(errs, t.show(path, e.content()))
		}
	}
	err := errors.Join(errs...)
	t.completed.Store(err == nil)
	return err
}

// make makes the file of an entry if it is deferred, for a program that looks at it but does not read it. It may sleep.
func (t *tree) make(path string, e *entry) error {
	if !e.deferred || t.completed.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if (*t.current.Load())[path] != e {
		return errNone // it has gone meanwhile
	}
	if _, there := t.shown[path]; there {
		return nil
	}
	return t.show(path, e.content())
}

// refresh brings the file of an entry up to date. The error of reading the entry comes first.
func (t *tree) refresh(path string, e *entry) error {
	content, err := e.read()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if (*t.current.Load())[path] != e {
		return errNone // it has gone meanwhile
	}
	return t.show(path, content)
}

// show makes a file or changes its content. A file keeps its inode, so that programs which have it open many times hold
// one page of memory, and read the new content. A reader may see both contents mixed. Only files whose content is
// common to many change their inode.
func (t *tree) show(path, content string) error {
	old, shown := t.shown[path]
	if shown && old == content {
		return nil
	}
	change := t.replace
	if shown && !isCommon(old) && !isCommon(content) {
		change = t.rewrite
	}
	if err := change(path, content); err != nil {
		return err
	}
	t.shown[path] = content
	return nil
}

func isCommon(content string) bool { return content == noGID || content == nothing }

// rewrite changes the content of a file. The tree may be writable for programs, if they are this user's: what they have
// put in the place of the file is replaced.
func (t *tree) rewrite(path, content string) error {
	name := t.name + path
	open := func() (*os.File, error) {
		return t.above.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	f, err := open()
	if errors.Is(err, unix.EACCES) { // without CAP_DAC_OVERRIDE
		if err = t.above.Chmod(name, 0o644); err == nil {
			f, err = open()
			err = errors.Join(err, t.above.Chmod(name, 0o444))
		}
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return t.replace(path, content)
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Sys().(*syscall.Stat_t).Nlink != 1) {
		f.Close()
		return t.replace(path, content)
	}
	if err == nil {
		_, err = f.WriteString(content)
	}
	if err == nil {
		err = f.Truncate(int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// replace gives a path another file. A rename that leaves its directory would hold a lock of the file system while it
// waits for the directory's.
func (t *tree) replace(path, content string) error {
	t.temps++
	temp := filepath.Join(filepath.Dir(t.real(path)), fmt.Sprintf(".%d", t.temps))
	var err error
	switch content {
	case noGID:
		err = os.Link(t.common("nogid"), temp)
	case nothing:
		err = os.Link(t.common("nothing"), temp)
	default:
		err = makeFile(temp, content, 0o444)
	}
	if err == nil {
		err = os.Rename(temp, t.real(path))
	}
	if err != nil {
		os.Remove(temp)
	}
	return err
}

// isVirtual reports whether what a clean path names is this package's to show, whether it is there or not: the real
// devices, if there are any, are hidden.
func isVirtual(path string) bool {
	for _, p := range [...]string{"/dev/infiniband", cmClass, virtualDir + "/misc/rdma_cm", "/dev/char/" + cmNumber,
		"/sys/dev/char/" + cmNumber, maxBacklogFile} {
		if rest, ok := strings.CutPrefix(path, p); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	for _, p := range [...]string{"/sys/class/infiniband", virtualDir + "/infiniband", devChar, sysDevChar} {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

// hasVirtualWord decides fast, for a path as it comes, that it is not virtual; most are not.
func hasVirtualWord(path []byte) bool {
	for _, word := range virtualWords {
		if bytes.Contains(path, word) {
			return true
		}
	}
	return false
}

// virtualWords: each virtual path has one of them.
var virtualWords = [][]byte{[]byte("infiniband"), []byte("rdma_cm"), []byte("rdma_ucm"), []byte(majorPrefix),
	[]byte(cmNumber)}
