package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/internal/pci"
)

func newTestTree(t *testing.T) *tree {
	t.Helper()
	dir := newShmDir(t)
	above, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { above.Close() })
	opened, err := openDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	tr, err := newTree(above, opened, "tree")
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func (t *tree) mustUpdate(tb testing.TB, want treeEntries) {
	tb.Helper()
	if err := t.updateEntries(func() treeEntries { return want }); err != nil {
		tb.Fatal(err)
	}
}

// listFiles returns the entries of the tree's directory, by path, with their content, type or target.
func (t *tree) listFiles(tb testing.TB) map[string]string {
	tb.Helper()
	m := make(map[string]string)
	err := filepath.WalkDir(t.root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, t.root)
		switch {
		case path == t.commonFilePath(""):
			return filepath.SkipDir
		case name == "":
		case d.IsDir():
			m[name] = "dir"
		case d.Type()&os.ModeSymlink != 0:
			m[name], err = os.Readlink(path)
		default:
			var b []byte
			b, err = os.ReadFile(path)
			m[name] = string(b)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrPermission) { // a placeholder
		tb.Fatal(err)
	}
	return m
}

func TestTreeFollowsTheDevices(t *testing.T) {
	tr := newTestTree(t)
	one := make(treeEntries)
	one.addTextFile("/a/x", "1\n")
	one.addTextFile("/a/y", "y\n")
	one.addEntry("/b/dev", &treeEntry{node: &deviceNode{device: "dev"}})
	one.addEntry("/c", &treeEntry{link: "a"})
	two := make(treeEntries)
	two.addTextFile("/a/x", "2\n")
	two.addTextFile("/a/d/z", "z\n")
	for _, tt := range []struct {
		set  treeEntries
		want map[string]string
	}{
		{one, map[string]string{"/a": "dir", "/a/x": "1\n", "/a/y": "y\n", "/b": "dir", "/b/dev": "", "/c": "a"}},
		{two, map[string]string{"/a": "dir", "/a/x": "2\n", "/a/d": "dir", "/a/d/z": "z\n"}},
		{one, map[string]string{"/a": "dir", "/a/x": "1\n", "/a/y": "y\n", "/b": "dir", "/b/dev": "", "/c": "a"}},
		{treeEntries{}, map[string]string{}},
	} {
		tr.mustUpdate(t, tt.set)
		if got := tr.listFiles(t); !maps.Equal(got, tt.want) {
			t.Errorf("entries: got %q, want %q", got, tt.want)
		}
	}
	if left, _ := os.ReadDir(tr.commonFilePath("")); len(left) != 2 {
		t.Errorf("remaining temporary files: got %v, want none", left)
	}
}

// TestTreeUpdateRetriesFailedFiles tests that an update makes the files that the previous update failed to make.
func TestTreeUpdateRetriesFailedFiles(t *testing.T) {
	tr := newTestTree(t)
	inTheWay := tr.realPath("/sys")
	if err := os.WriteFile(inTheWay, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	want := make(treeEntries)
	want.addTextFile("/sys/class/name", "rxe0\n")
	if err := tr.updateEntries(func() treeEntries { return want }); err == nil {
		t.Error("update: got success, want an error")
	}
	if _, e := tr.lookup("/sys/class/name", false); e != nil {
		t.Error("lookup of a missing file: got an entry, want none")
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	tr.mustUpdate(t, want)
	if got := tr.listFiles(t)["/sys/class/name"]; got != "rxe0\n" {
		t.Errorf("content after the second update: got %q, want rxe0", got)
	}
}

func TestTreeKeepsTimeStampsOfWhatStays(t *testing.T) {
	tr := newTestTree(t)
	at := func(path string) int64 {
		t.Helper()
		st, err := os.Stat(tr.realPath(path))
		if err != nil {
			t.Fatal(err)
		}
		return st.ModTime().UnixNano()
	}
	set := func(id any, state string, more ...string) {
		e := make(treeEntries)
		e.addEntry("/dev0", &treeEntry{dir: true, id: id})
		e.addTextFile("/dev0/guid", "g\n")
		e.addTextFile("/dev0/port/state", state)
		for _, m := range more {
			e.addTextFile("/"+m+"/guid", "g\n")
		}
		tr.mustUpdate(t, e)
	}
	set(1, "up")
	first := at("/dev0")
	set(1, "down", "dev1")
	set(1, "up")
	if at("/dev0") != first {
		t.Error("time stamp of an unchanged device's directory: got a new one, want the old one")
	}
	set(2, "up")
	if at("/dev0") == first {
		t.Error("time stamp of another device's directory: got the old one, want a new one")
	}
	if tr.listFiles(t)["/dev0/port/state"] != "up" {
		t.Error("files of a new directory: got some missing, want all")
	}
}

func TestTreeRefreshesFileContent(t *testing.T) {
	tr := newTestTree(t)
	content, fail := "1", error(nil)
	e := make(treeEntries)
	e.addFile("/f", func() (string, error) { return content, fail })
	tr.mustUpdate(t, e)
	open, err := os.Open(tr.realPath("/f"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for _, content = range []string{"2", noGID, emptyContent, noGID, "3"} {
		if err := tr.refreshFile("/f", e["/f"]); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(tr.realPath("/f")); string(got) != content {
			t.Errorf("content: got %q, want %q", got, content)
		}
	}
	var b [8]byte
	if n, _ := open.ReadAt(b[:], 0); string(b[:n]) != "2" {
		t.Errorf("read of an open file: got %q, want 2, the content before the shared one", b[:n])
	}
	// Without a shared content, the file keeps its inode, even if a program has replaced the file meanwhile.
	again, err := os.Open(tr.realPath("/f"))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, content = range []string{"4321", "5", "67"} {
		if err := tr.refreshFile("/f", e["/f"]); err != nil {
			t.Fatal(err)
		}
		if n, _ := again.ReadAt(b[:], 0); string(b[:n]) != content {
			t.Errorf("read of an open file: got %q, want %q", b[:n], content)
		}
	}
	if st, err := os.Stat(tr.realPath("/f")); err != nil || st.Mode() != 0o444 {
		t.Errorf("file: got %v and error %v, want mode 0444", st, err)
	}
	for _, put := range []func(path string) error{
		func(path string) error { return syscall.Mkfifo(path, 0o600) },
		func(path string) error { return os.Link(tr.commonFilePath("nothing"), path) },
		func(path string) error { return os.Symlink("/dev/null", path) },
		func(string) error { return nil },
	} {
		if err := errors.Join(os.Remove(tr.realPath("/f")), put(tr.realPath("/f"))); err != nil {
			t.Fatal(err)
		}
		content += "1"
		if err := tr.refreshFile("/f", e["/f"]); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(tr.realPath("/f")); string(got) != content {
			t.Errorf("content: got %q and error %v, want %q", got, err, content)
		}
	}
	if got, _ := os.ReadFile(tr.commonFilePath("nothing")); len(got) != 0 {
		t.Errorf("content of the shared file: got %q, want none", got)
	}
	if fail = errEmptyGID; !errors.Is(tr.refreshFile("/f", e["/f"]), syscall.EINVAL) {
		t.Error("refresh of an unreadable attribute: got success, want EINVAL")
	}
	fail = nil
	tr.mustUpdate(t, treeEntries{})
	if err := tr.refreshFile("/f", e["/f"]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("refresh of a removed file: got %v, want ErrNotExist", err)
	}
}

// TestDriverFilesAppearBelowDevice tests that a driver's files appear below its device, do not hide other files, and
// cannot replace a directory or lie below a file.
func TestDriverFilesAppearBelowDevice(t *testing.T) {
	own := func() (string, error) { return "own\n", nil }
	dev := device{name: "uverbs0", ib: ib.NewDevice("rxe7", newFakeDriver(), nil).Device(),
		files: map[string]func() (string, error){
			"own": own, "ports/1/hw/own": own, "node_type": own, "node_type/own": own, "ports": own,
		}}
	e := makeDeviceEntries([]device{dev}, false)
	newTestTree(t).mustUpdate(t, e)
	dir := virtualDir + "/infiniband/rxe7/"
	for name, want := range map[string]string{"own": "own\n", "ports/1/hw/own": "own\n", "node_type": "1: CA\n"} {
		if got, err := e[dir+name].read(); err != nil || got != want {
			t.Errorf("content of %s: got %q and error %v, want %q", name, got, err, want)
		}
	}
	if e[dir+"node_type/own"] != nil || !e[dir+"ports"].dir {
		t.Error("driver's files: got one below a file or in place of a directory, want none")
	}
}

func TestTreeLookup(t *testing.T) {
	e := makeDeviceEntries([]device{{name: "uverbs3", minor: 3, ib: ib.NewDevice("rxe7", newFakeDriver(),
		nil).Device()}}, true)
	tr := newTestTree(t)
	tr.mustUpdate(t, e)
	for _, tt := range []struct {
		path     string
		nofollow bool
		want     string // empty: no entry
	}{
		{"/dev/infiniband/uverbs3", false, "/dev/infiniband/uverbs3"},
		{"/dev/infiniband/rdma_cm", false, "/dev/infiniband/rdma_cm"},
		{"/dev/char/10:122", false, "/dev/infiniband/rdma_cm"},
		{"/sys/class/misc/rdma_cm/dev", false, "/sys/devices/virtual/misc/rdma_cm/dev"},
		{"/sys/dev/char/10:122", false, "/sys/devices/virtual/misc/rdma_cm"},
		{"/dev/char/231:195", false, "/dev/infiniband/uverbs3"},
		{"/dev/char/231:195", true, "/dev/char/231:195"},
		{"/dev/char/231:192", false, ""},
		{"/sys/dev/char/231:195", false, "/sys/devices/virtual/infiniband_verbs/uverbs3"},
		{"/sys/dev/char/231:195/ibdev", true, "/sys/devices/virtual/infiniband_verbs/uverbs3/ibdev"},
		{"/sys/dev/char/231:195/nosuch", false, ""},
		{"/sys/class/infiniband/rxe7/ports/1/gids/7", false, "/sys/devices/virtual/infiniband/rxe7/ports/1/gids/7"},
		{"/sys/class/infiniband/rxe7/ports/2", false, ""},
	} {
		path, entry := tr.lookup(tt.path, tt.nofollow)
		if (entry != nil) != (tt.want != "") || entry != nil && path != tt.want {
			t.Errorf("lookup %s (nofollow %v): got %s and %v, want %s", tt.path, tt.nofollow, path, entry, tt.want)
		}
	}
	for path, entry := range e {
		if !isVirtual(path) && !slices.Contains([]string{
			"/dev", "/dev/char", "/sys", "/sys/class", "/sys/class/misc", "/sys/dev", "/sys/dev/char", "/proc", "/proc/sys",
			"/proc/sys/net",
			"/proc/sys/net/rdma_ucm", "/sys/devices", "/sys/devices/virtual", "/sys/devices/virtual/misc",
		}, path) {
			t.Errorf("%s: got a real path, want a virtual one", path)
		}
		if _, err := os.Lstat(tr.realPath(path)); (err == nil) == entry.deferred {
			t.Errorf("file of entry %v: got error %v, want a file unless it is deferred", entry, err)
		}
	}
}

// TestPCITree tests the directories and links of devices with PCI functions, and the paths that are virtual.
func TestPCITree(t *testing.T) {
	function := func(text string) *pci.Function {
		f, _, err := pci.Parse(text, "rxe")
		if err != nil {
			t.Fatal(err)
		}
		return &f
	}
	var devices []device
	for i, text := range []string{"fffe:81:00.0,numa=0", "fffe:82:00.0,numa=1023", "fffe:90:00.0"} {
		devices = append(devices, device{name: fmt.Sprint("uverbs", i), minor: i, pci: function(text),
			ib: ib.NewDevice(fmt.Sprint("rxe", i), newFakeDriver(), nil).Device()})
	}
	e := makeDeviceEntries(devices, true)
	tr := newTestTree(t)
	tr.mustUpdate(t, e)
	const first = "/sys/devices/pcifffe:80/fffe:80:01.0/fffe:81:00.0"
	const onRoot = "/sys/devices/pcifffe:90/fffe:90:00.0"
	for path, want := range map[string]string{
		"/sys/class/infiniband/rxe0":                      first + "/infiniband/rxe0",
		"/sys/class/infiniband/rxe0/device":               first,
		"/sys/class/infiniband/rxe0/device/vendor":        first + "/vendor",
		"/sys/class/infiniband/rxe1/device":               "/sys/devices/pcifffe:80/fffe:80:02.0/fffe:82:00.0",
		"/sys/class/infiniband/rxe2/device":               onRoot,
		"/sys/class/infiniband_verbs/uverbs2/device":      onRoot,
		"/sys/dev/char/231:192":                           first + "/infiniband_verbs/uverbs0",
		"/sys/bus/pci/devices/fffe:81:00.0":               first,
		"/sys/bus/pci/devices/fffe:80:01.0":               "/sys/devices/pcifffe:80/fffe:80:01.0",
		"/sys/bus/pci/drivers/rxe/fffe:90:00.0":           onRoot,
		"/sys/class/pci_bus/fffe:81":                      "/sys/devices/pcifffe:80/fffe:80:01.0/pci_bus/fffe:81",
		"/sys/class/pci_bus/fffe:90":                      "/sys/devices/pcifffe:90/pci_bus/fffe:90",
		first + "/driver":                                 "/sys/bus/pci/drivers/rxe",
		first + "/subsystem":                              "/sys/bus/pci",
		"/sys/class/infiniband/rxe0/ports/1/gids/3":       first + "/infiniband/rxe0/ports/1/gids/3",
		"/sys/class/infiniband/rxe0/device/infiniband":    first + "/infiniband",
		"/sys/class/infiniband/rxe2/device/../nosuch":     "",
		"/sys/bus/pci/devices/0000:00:00.0":               "",
		"/sys/devices/virtual/infiniband/rxe0":            "",
		"/sys/devices/pcifffe:80/fffe:80:01.0/nosuch":     "",
		"/sys/bus/pci/devices/fffe:81:00.0/physfn":        "",
		"/sys/class/infiniband/rxe0/device/driver/nosuch": "",
	} {
		got, entry := tr.lookup(path, false)
		if (entry != nil) != (want != "") || entry != nil && got != want {
			t.Errorf("lookup %s: got %s and %v, want %s", path, got, entry, want)
		}
	}
	for path, entry := range e {
		if entry.link == "" {
			continue
		}
		// The kernel resolves the links within the tree, too.
		if to, err := filepath.EvalSymlinks(tr.realPath(path)); err != nil || !strings.HasPrefix(to, tr.root+"/") {
			t.Errorf("link %s -> %s: got %s and error %v, want a file of the tree", path, entry.link, to, err)
		}
	}
	for path, want := range map[string]bool{
		first + "/config": true, "/sys/devices/pcifffe:80": true, "/sys/devices/pcifffe:80/other": true,
		"/sys/bus/pci/devices/fffe:81:00.0/x": true, "/sys/bus/pci/drivers/rxe": true, "/sys/class/pci_bus/fffe:81": true,
		"/sys/devices": false, "/sys/devices/pcifffe:8": false, "/sys/devices/pci0000:00/0000:00:00.0": false,
		"/sys/class": false, "/sys": false, "/": false, "/sys/devices/pcifffe:800": false,
	} {
		if got := tr.isVirtual(path); got != want {
			t.Errorf("isVirtual(%s): got %v, want %v", path, got, want)
		}
		if want && !hasVirtualWord([]byte(path)) {
			t.Errorf("hasVirtualWord(%s): got false, want true", path)
		}
	}
	if !tr.isVirtual("/sys/class/infiniband/x") {
		t.Error("isVirtual of a class of devices: got false, want true")
	}
	for path, want := range map[string]string{
		"fffe:81:00.0/numa_node": "0\n", "fffe:82:00.0/numa_node": "1023\n", "fffe:90:00.0/numa_node": "-1\n",
		"fffe:80:01.0/numa_node": "0\n",
	} {
		_, entry := tr.lookup("/sys/bus/pci/devices/"+path, false)
		if got, err := entry.read(); err != nil || got != want {
			t.Errorf("%s: got %q and error %v, want %q", path, got, err, want)
		}
	}
	tr.mustUpdate(t, makeDeviceEntries(devices[2:], true)) // two devices are removed
	if _, entry := tr.lookup(first, false); entry != nil || tr.isVirtual(first) || !tr.isVirtual(onRoot) {
		t.Error("removed device: got an entry, want none; and want one for the other device")
	}
}

func TestTreeDefersFiles(t *testing.T) {
	describe := func(content string, id any, n int) treeEntries {
		e := make(treeEntries)
		e.addEntry("/d", &treeEntry{dir: true, id: id, table: &entryTable{n: n, read: func(i int) (string, error) {
			if i == 2 {
				return "", errEmptyGID
			}
			return content, nil
		}}})
		e.addTextFile("/d/now", content)
		return e
	}
	tr := newTestTree(t)
	have := func(what string, want map[string]string) {
		t.Helper()
		want["/d"] = "dir"
		if got := tr.listFiles(t); !maps.Equal(got, want) {
			t.Errorf("entries %s: got %q, want %q", what, got, want)
		}
	}
	one := describe("1", 1, 3)
	tr.mustUpdate(t, one)
	have("at first", map[string]string{"/d/now": "1"})
	for _, path := range []string{"/d/0", "/d/2"} {
		if err := tr.makeDeferredFile(path, one.find(path)); err != nil {
			t.Error(err)
		}
	}
	have("after two were accessed", map[string]string{"/d/now": "1", "/d/0": "1", "/d/2": ""})
	two := describe("2", 1, 3)
	tr.mustUpdate(t, two)
	have("after a change of two", map[string]string{"/d/now": "2", "/d/0": "2", "/d/2": ""})
	if err := tr.makeDeferredFile("/d/1", one.find("/d/1")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("make of a removed file: got %v, want ENOENT", err)
	}
	tr.mustUpdate(t, describe("2", 1, 2))
	have("of a shorter table", map[string]string{"/d/now": "2", "/d/0": "2"})
	for _, path := range []string{"/d/2", "/d/-1", "/d/01", "/d/+1", "/d/now/0", "/0"} {
		if _, e := tr.lookup(path, false); e != nil {
			t.Errorf("lookup %s: got %v, want no entry", path, e)
		}
	}
	tr.mustUpdate(t, describe("3", 2, 3))
	have("of another directory", map[string]string{"/d/now": "3"})
	// The steps simulate a full file system: first an error, later success.
	if err := os.Rename(tr.realPath("/d"), tr.realPath("/away")); err != nil {
		t.Fatal(err)
	}
	if err := tr.makeAllDeferredFiles(); err == nil {
		t.Error("complete in a missing directory: got success, want an error")
	}
	if err := os.Rename(tr.realPath("/away"), tr.realPath("/d")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := tr.makeAllDeferredFiles(); err != nil {
			t.Error(err)
		}
		have("after the directory was opened", map[string]string{"/d/now": "3", "/d/0": "3", "/d/1": "3", "/d/2": ""})
	}
	tr.mustUpdate(t, describe("4", 3, 3))
	have("of another directory, later", map[string]string{"/d/now": "4", "/d/0": "4", "/d/1": "4", "/d/2": ""})
}

// TestTreeRepairsTable makes the files of a table when an update fails after it has made their directory.
func TestTreeRepairsTable(t *testing.T) {
	describe := func() treeEntries {
		e := make(treeEntries)
		e.addEntry("/d", &treeEntry{dir: true, table: &entryTable{n: 2, read: func(i int) (string, error) {
			return emptyContent, nil
		}}})
		return e
	}
	tr := newTestTree(t)
	tr.completed.Store(true)
	common, away := tr.commonFilePath(""), tr.root+"/away"
	if err := os.Rename(common, away); err != nil {
		t.Fatal(err)
	}
	if err := tr.updateEntries(describe); err == nil {
		t.Error("update without the common files: got success, want an error")
	}
	if err := os.Rename(away, common); err != nil {
		t.Fatal(err)
	}
	tr.mustUpdate(t, describe())
	if got, want := tr.listFiles(t), map[string]string{"/d": "dir", "/d/0": "", "/d/1": ""}; !maps.Equal(got, want) {
		t.Errorf("entries after the repair: got %q, want %q", got, want)
	}
}

// TestTableStaysInTree replaces the directory of a table by a link, as a program of the service's user can. No file may
// be made in the link's target.
func TestTableStaysInTree(t *testing.T) {
	tr := newTestTree(t)
	e := make(treeEntries)
	e.addEntry("/d", &treeEntry{dir: true, table: &entryTable{n: 2, read: func(int) (string, error) {
		return emptyContent, nil
	}}})
	tr.mustUpdate(t, e)
	outside, err := os.MkdirTemp(filepath.Dir(tr.above.Name()), "outside") // on the file system of the tree, for links
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(outside)
	if err := errors.Join(os.Remove(tr.realPath("/d")), os.Symlink(outside, tr.realPath("/d"))); err != nil {
		t.Fatal(err)
	}
	if err := tr.makeAllDeferredFiles(); err == nil {
		t.Error("make the files of a replaced directory: got success, want an error")
	}
	if files, err := os.ReadDir(outside); err != nil || len(files) > 0 {
		t.Errorf("target of the link: got %v, error %v, want no files", files, err)
	}
}

func TestIsVirtual(t *testing.T) {
	for path, want := range map[string]bool{
		"/dev/infiniband":                       true,
		"/dev/infiniband/uverbs0":               true,
		"/dev/infiniband/rdma_cm":               true,
		"/dev/infiniband2":                      false,
		"/dev":                                  false,
		"/dev/char":                             false,
		"/dev/char/231:192":                     true,
		"/dev/char/1:3":                         false,
		"/sys/class":                            false,
		"/sys/class/net":                        false,
		"/sys/class/infiniband":                 true,
		"/sys/class/infiniband_mad/umad0":       true,
		"/sys/class/infiniband_verbs/uverbs9":   true,
		"/sys/class/misc/rdma_cm":               true,
		"/sys/class/misc/rdma_cm/abi_version":   true,
		"/sys/class/misc/rdma_cm2":              false,
		"/sys/dev/char/231:192/ibdev":           true,
		"/home/me/infiniband":                   false,
		"/sys/module/infiniband/dev/infiniband": false,
	} {
		if got := isVirtual(path); got != want {
			t.Errorf("isVirtual(%s): got %v, want %v", path, got, want)
		}
	}
}

// FuzzVirtualPath tests that hasVirtualWord accepts each path that isVirtual accepts, with any number of dots and
// slashes.
func FuzzVirtualPath(f *testing.F) {
	for _, s := range []string{"/dev/infiniband/uverbs0", "/dev/../sys//class/./infiniband/x", "/sys/class/misc/rdma_cm",
		"/dev/char/231:192", "/sys/dev/char/231:1/../231:2", "", "/", "infiniband", "/dev/infini/../band",
		"/dev/char//231:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if strings.HasPrefix(path, "/") && isVirtual(filepath.Clean(path)) && !hasVirtualWord([]byte(path)) {
			t.Errorf("%q: got a virtual path, want a real one", path)
		}
	})
}
