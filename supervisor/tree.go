package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// treeEntry is the file at a virtual path, which is exactly one of a directory, a file, a link and a device node.
type treeEntry struct {
	dir bool
	// owned marks an entry from which on all paths are virtual, whether or not an entry exists. See
	// treeEntries.isVirtual.
	owned bool
	// table holds the numbered files of a directory, and is nil for most directories.
	table *entryTable
	// read makes the content of a file. If read fails, reading the file fails with the same error.
	read func() (string, error)
	// deferred marks a file of a table, which is made when a program first accesses it or a directory above it; see
	// tree.makeAllDeferredFiles.
	deferred bool
	link     string // relative target of a symbolic link
	node     *deviceNode
	// id identifies the object of a directory, and changes when the directory represents another object of the same
	// name. (rdma-core compares the directory's time stamps for this purpose.)
	id any
}

// entryTable holds the files 0 to n-1 of a directory, which are all deferred. A GID table has thousands of files, and a
// program accesses few of them, so the entries are made with the first access to one of them.
type entryTable struct {
	n    int
	read func(i int) (string, error) // makes the content of a file, as treeEntry.read does

	once    sync.Once
	entries []treeEntry
}

// entry returns the entry of a file.
func (t *entryTable) entry(i int) *treeEntry {
	t.once.Do(func() {
		t.entries = make([]treeEntry, t.n)
		for i := range t.entries {
			t.entries[i] = treeEntry{deferred: true, read: func() (string, error) { return t.read(i) }}
		}
	})
	return &t.entries[i]
}

// find returns the entry of the file with a name, or nil.
func (t *entryTable) find(name string) *treeEntry {
	i, err := strconv.Atoi(name)
	if err != nil || i < 0 || i >= t.n || strconv.Itoa(i) != name {
		return nil
	}
	return t.entry(i)
}

// deviceNode describes a device file.
type deviceNode struct {
	device string // name of the device on the server
	minor  uint32
	cm     bool // the node is rdma_cm
	stores bool // programs post by stores to memory
}

// major returns the major device number.
func (n *deviceNode) major() uint32 {
	if n.cm {
		return miscMajor
	}
	return verbsMajor
}

// treeEntries maps virtual paths, absolute and clean, to their entries.
type treeEntries map[string]*treeEntry

// addEntry adds an entry and the directories above it.
func (t treeEntries) addEntry(path string, e *treeEntry) {
	t[path] = e
	if up := filepath.Dir(path); up != "/" && t[up] == nil {
		t.addEntry(up, &treeEntry{dir: true})
	}
}

// find returns the entry of a path, or nil.
func (t treeEntries) find(path string) *treeEntry {
	if e := t[path]; e != nil {
		return e
	}
	if d := t[filepath.Dir(path)]; d != nil && d.table != nil {
		return d.table.find(filepath.Base(path))
	}
	return nil
}

// isFree reports whether a file can be added. No entry may have its path, and all entries above it must be directories.
func (t treeEntries) isFree(path string) bool {
	if t.find(path) != nil {
		return false
	}
	for up := filepath.Dir(path); up != "/"; up = filepath.Dir(up) {
		if e := t[up]; e != nil {
			return e.dir
		}
	}
	return true
}

func (t treeEntries) addFile(path string, read func() (string, error)) {
	t.addEntry(path, &treeEntry{read: read})
}

func (t treeEntries) addTextFile(path, content string) {
	t.addFile(path, func() (string, error) { return content, nil })
}

// resolveLinks follows links. No link refers to another link. With nofollow, a link in the last component is not
// followed.
func (t treeEntries) resolveLinks(path string, nofollow bool) (string, *treeEntry) {
	for end := 1; end < len(path); end++ {
		if path[end] != '/' {
			continue
		}
		if e := t[path[:end]]; e != nil && e.link != "" {
			return t.resolveLinks(filepath.Join(filepath.Dir(path[:end]), e.link)+path[end:], nofollow)
		}
	}
	e := t.find(path)
	if e != nil && e.link != "" && !nofollow {
		path = filepath.Join(filepath.Dir(path), e.link)
		e = t[path]
	}
	return path, e
}

// tree contains the parts of /dev and /sys that programs of one user see, as files in a directory. A program that
// has a descriptor of a file or directory of the tree uses it natively. Device nodes are represented by
// placeholders that cannot be opened. A program can hold the kernel's lock of a directory, so each method below
// that may sleep may block for an unlimited time; see trees.
type tree struct {
	root  string
	name  string   // name of root in the directory above
	above *os.Root // directory through which the service changes files
	// dir is the directory through which programs' files are opened. It is a read-only mount of above, if the
	// kernel allows this process to make one.
	dir     *os.File
	current atomic.Pointer[treeEntries]

	places atomic.Pointer[baseDirectories]

	// set once deferred files are made like other files
	completed atomic.Bool

	mu    sync.Mutex
	shown map[string]string // contents of the existing files
	temps int
}

// The following constants are the contents that most files of a sparse GID table have. All files with such a
// content share one inode.
const (
	noGID        = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	emptyContent = ""
)

// newTree makes an empty tree in a new directory of above, and the tree owns that directory. dir is an open
// descriptor of above.
func newTree(above *os.Root, dir *os.File, name string) (*tree, error) {
	t := &tree{root: filepath.Join(above.Name(), name), name: name, above: above, dir: dir, shown: make(map[string]string)}
	t.current.Store(&treeEntries{})
	t.places.Store(&baseDirectories{})
	if err := errors.Join(
		makeDir(t.root),
		makeDir(t.commonFilePath("")),
		makeFile(t.commonFilePath(commonFileNames[noGID]), noGID, 0o444),
		makeFile(t.commonFilePath(commonFileNames[emptyContent]), emptyContent, 0o444)); err != nil {
		return nil, errors.Join(fmt.Errorf("make the tree of virtual files: %w", err), t.removeTree())
	}
	return t, nil
}

// removeTree removes the tree.
func (t *tree) removeTree() error { return t.above.RemoveAll(t.name) }

// openPath opens the file of a virtual path without following links. Programs of this process's user may write to the
// tree, so they may have replaced the file.
//
//verbena:allow open only files of the tree are opened, with O_CLOEXEC
func (t *tree) openPath(path string, how int) (int, error) {
	return unix.Openat2(int(t.dir.Fd()), t.name+path, &unix.OpenHow{
		Flags: uint64(
			how | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// makeDir makes a directory that all users can read, regardless of the umask.
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

func (t *tree) commonFilePath(name string) string { return filepath.Join(t.root, ".common", name) }

// realPath returns the path of the file that represents a virtual path.
func (t *tree) realPath(path string) string { return t.root + path }

// lookup returns the entry of a clean path, or nil, and the path after following links. With nofollow, a link in
// the last component is not followed.
func (t *tree) lookup(path string, nofollow bool) (string, *treeEntry) {
	return (*t.current.Load()).resolveLinks(path, nofollow)
}

// updateEntries changes the tree to the entries that describe returns. An existing directory keeps its time stamps
// unless entries of it are added or removed. After an error some entries are missing, and the next update makes them.
// updateEntries may sleep.
func (t *tree) updateEntries(describe func() treeEntries) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, want := *t.current.Load(), describe()
	var errs []error
	gone := func(path string) bool {
		h, w := have[path], want[path]
		return w == nil || w.id != h.id || w.dir != h.dir || w.link != h.link || (w.node == nil) != (h.node == nil)
	}
	kept := make(treeEntries)
	for _, path := range slices.Sorted(maps.Keys(have)) {
		up := filepath.Dir(path)
		switch {
		case have[up] != nil && kept[up] == nil: // already removed together with its directory
			t.forgetFiles(path, have[path])
		case gone(path):
			t.forgetFiles(path, have[path])
			errs = append(errs, t.above.RemoveAll(t.name+path))
		default:
			kept[path] = have[path]
			errs = append(errs, t.shortenTable(path, have[path].table, want[path].table))
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
		exists := kept[path] != nil
		switch {
		case w.read != nil:
			err = t.showFile(path, w.readContent())
		case w.dir:
			if !exists {
				err = makeDir(t.realPath(path))
				exists = err == nil
			}
			if exists && w.table != nil {
				err = t.showTable(path, w.table, t.completed.Load())
			}
		case exists:
		case w.link != "":
			err = os.Symlink(w.link, t.realPath(path))
		default:
			err = makeFile(t.realPath(path), "", 0)
		}
		if err != nil && !exists {
			delete(made, path)
		}
		full = full || errors.Is(err, unix.ENOSPC) // one error of this kind suffices
		errs = append(errs, err)
	}
	t.current.Store(&made)
	t.places.Store(t.findBaseDirectories(made))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("update the tree of virtual files: %w", err)
	}
	return nil
}

// forgetFiles records that the files of an entry do not exist any more.
func (t *tree) forgetFiles(path string, e *treeEntry) {
	delete(t.shown, path)
	if e.table == nil {
		return
	}
	for i := range e.table.n {
		delete(t.shown, numberedFile(path, i))
	}
}

// shortenTable removes the files of a directory that its new table does not have. Both tables may be nil.
func (t *tree) shortenTable(path string, have, want *entryTable) error {
	var errs []error
	first := 0
	if want != nil {
		first = want.n
	}
	for i := first; have != nil && i < have.n; i++ {
		p := numberedFile(path, i)
		if _, there := t.shown[p]; there {
			delete(t.shown, p)
			errs = append(errs, t.above.RemoveAll(t.name+p))
		}
	}
	return errors.Join(errs...)
}

// showTable updates the existing files of a table. If all is set, showTable also makes the others.
func (t *tree) showTable(path string, e *entryTable, all bool) error {
	var missing []int
	var errs []error
	for i := range e.n {
		p := numberedFile(path, i)
		if _, there := t.shown[p]; !there {
			missing = append(missing, i)
			continue
		}
		errs = append(errs, t.showFile(p, e.entry(i).readContent()))
	}
	if all && len(missing) > 0 {
		errs = append(errs, t.makeTableFiles(path, e, missing))
	}
	return errors.Join(errs...)
}

// makeTableFiles makes files of a table. Most of them have a common content, and are links to its file. A link by the
// descriptors of both directories takes a tenth of the time of replaceFile.
func (t *tree) makeTableFiles(path string, e *entryTable, missing []int) error {
	const how = os.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_CLOEXEC
	common, err := t.above.OpenFile(t.name+"/.common", how, 0) // no link leads out of above
	if err != nil {
		return err
	}
	defer common.Close()
	dir, err := t.above.OpenFile(t.name+path, how, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	var errs []error
	for _, i := range missing {
		p, content := numberedFile(path, i), e.entry(i).readContent()
		if name := commonFileNames[content]; name != "" &&
			unix.Linkat(int(common.Fd()), name, int(dir.Fd()), strconv.Itoa(i), 0) == nil {
			t.shown[p] = content
			continue
		}
		err := t.showFile(p, content)
		errs = append(errs, err)
		if errors.Is(err, unix.ENOSPC) { // one error of this kind suffices
			break
		}
	}
	return errors.Join(errs...)
}

func numberedFile(dir string, i int) string { return dir + "/" + strconv.Itoa(i) }

// readContent returns the content of an entry's file, or "" if reading it fails.
func (e *treeEntry) readContent() string {
	s, err := e.read()
	if err != nil {
		return emptyContent
	}
	return s
}

// makeAllDeferredFiles makes all deferred files, before a program opens a directory through which it could reach them
// without a trap. Most programs never open such a directory. Making the thousands of files of a GID table would take
// most of the time of a service's start or a device's reset. Files stay complete after this call, since the program may
// keep the directory open. makeAllDeferredFiles may sleep.
func (t *tree) makeAllDeferredFiles() error {
	if t.completed.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for path, e := range *t.current.Load() {
		if e.table != nil {
			errs = append(errs, t.showTable(path, e.table, true))
		}
	}
	err := errors.Join(errs...)
	t.completed.Store(err == nil)
	return err
}

// makeDeferredFile makes the file of a deferred entry for a program that accesses the file without reading it. It may
// sleep.
func (t *tree) makeDeferredFile(path string, e *treeEntry) error {
	if !e.deferred || t.completed.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current.Load().find(path) != e {
		return errNoFile // removed in the meantime
	}
	if _, there := t.shown[path]; there {
		return nil
	}
	return t.showFile(path, e.readContent())
}

// refreshFile updates the file of an entry. If the entry cannot be read, refreshFile returns that error, even if the
// entry has been removed meanwhile.
func (t *tree) refreshFile(path string, e *treeEntry) error {
	content, err := e.read()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current.Load().find(path) != e {
		return errNoFile // removed in the meantime
	}
	return t.showFile(path, content)
}

// showFile makes a file or changes its content. A file keeps its inode. Programs with many open descriptors of the file
// therefore hold one page of memory, and read the new content. A reader may see parts of both contents. The inode
// changes only for files with a shared content.
func (t *tree) showFile(path, content string) error {
	old, shown := t.shown[path]
	if shown && old == content {
		return nil
	}
	change := t.replaceFile
	if shown && !isCommonContent(old) && !isCommonContent(content) {
		change = t.rewriteFile
	}
	if err := change(path, content); err != nil {
		return err
	}
	t.shown[path] = content
	return nil
}

// commonFileNames holds the names of the files with common contents.
var commonFileNames = map[string]string{noGID: "nogid", emptyContent: "nothing"}

func isCommonContent(content string) bool { return commonFileNames[content] != "" }

// rewriteFile changes the content of a file. If programs of this process's user have replaced the file, rewriteFile
// makes a new one.
func (t *tree) rewriteFile(path, content string) error {
	name := t.name + path
	open := func() (*os.File, error) {
		return t.above.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	f, err := open()
	if errors.Is(err, unix.EACCES) { // the process lacks CAP_DAC_OVERRIDE
		if err = t.above.Chmod(name, 0o644); err == nil {
			f, err = open()
			err = errors.Join(err, t.above.Chmod(name, 0o444))
		}
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return t.replaceFile(path, content)
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Sys().(*syscall.Stat_t).Nlink != 1) {
		f.Close()
		return t.replaceFile(path, content)
	}
	if err == nil {
		_, err = f.WriteString(content)
	}
	if err == nil {
		err = f.Truncate(int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// replaceFile replaces the file at a path. A rename out of the directory would hold a lock of the file system while
// waiting for the lock of the directory.
func (t *tree) replaceFile(path, content string) error {
	t.temps++
	temp := filepath.Join(filepath.Dir(t.realPath(path)), fmt.Sprintf(".%d", t.temps))
	var err error
	if name := commonFileNames[content]; name != "" {
		err = os.Link(t.commonFilePath(name), temp)
	} else {
		err = makeFile(temp, content, 0o444)
	}
	if err == nil {
		err = os.Rename(temp, t.realPath(path))
	}
	if err != nil {
		os.Remove(temp)
	}
	return err
}

// isVirtual reports whether a clean path belongs to this package, whether or not a file exists at the path.
// Programs do not see real devices at such paths.
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

// isVirtual reports whether a clean path belongs to this package in general, or to an owned entry of t.
func (t treeEntries) isVirtual(path string) bool {
	if isVirtual(path) {
		return true
	}
	for up := path; strings.HasPrefix(up, "/sys/"); up = filepath.Dir(up) {
		if e := t[up]; e != nil && e.owned {
			return true
		}
	}
	return false
}

// isVirtual is treeEntries.isVirtual of the current entries.
func (t *tree) isVirtual(path string) bool { return (*t.current.Load()).isVirtual(path) }

// hasVirtualWord is a quick check whether a raw path can be virtual. Most paths cannot.
func hasVirtualWord(path []byte) bool {
	for _, word := range virtualWords {
		if bytes.Contains(path, word) {
			return true
		}
	}
	return false
}

// virtualWords contains at least one word of each virtual path.
var virtualWords = [][]byte{[]byte("infiniband"), []byte("rdma_cm"), []byte("rdma_ucm"), []byte(majorPrefix),
	[]byte(cmNumber), []byte("pci")}
