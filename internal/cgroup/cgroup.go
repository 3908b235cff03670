// Package cgroup reads the limits that control groups, of version 1 and 2, put on this process.
package cgroup

import (
	"bufio"
	"bytes"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits are the lowest limits of the process's own groups and of all their parents that are visible; 0: no limit.
type Limits struct {
	Memory uint64 // in bytes
	Tasks  uint64 // processes and threads
}

// Read reads the limits. root is the root of the file system, with /proc in it. What cannot be read does not limit.
//
// The limits are those of the moment: an administrator can change them at any time.
func Read(root fs.FS) (l Limits) {
	groups := readGroups(root)
	mounts := readMounts(root)
	if p, ok := groups[""]; ok {
		for dir := range dirs(mounts, "", p) {
			lower(&l.Memory, root, dir, "memory.max")
			lower(&l.Memory, root, dir, "memory.high") // beyond it the kernel slows every thread down
			lower(&l.Tasks, root, dir, "pids.max")
		}
	}
	if p, ok := groups["memory"]; ok {
		for dir := range dirs(mounts, "memory", p) {
			lower(&l.Memory, root, dir, "memory.limit_in_bytes")
			lowerHierarchical(&l.Memory, root, dir)
		}
	}
	if p, ok := groups["pids"]; ok {
		for dir := range dirs(mounts, "pids", p) {
			lower(&l.Tasks, root, dir, "pids.max")
		}
	}
	return l
}

// readGroups returns the path of the process's group for each controller of version 1, and for version 2 under the
// empty name.
func readGroups(root fs.FS) map[string]string {
	groups := map[string]string{}
	b, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range lines(b) {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			groups[c] = f[2]
		}
	}
	return groups
}

// mount is a mount of a hierarchy.
type mount struct {
	controllers []string // of version 1; nil: version 2
	root        string   // the group that is mounted
	point       string
}

// readMounts lists the mounts of hierarchies.
func readMounts(root fs.FS) (list []mount) {
	b, _ := fs.ReadFile(root, "proc/self/mountinfo")
	for line := range lines(b) {
		// 35 31 0:32 /group /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
		place, kind, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(place), strings.Fields(kind)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		m := mount{root: unescape(f[3]), point: unescape(f[4])}
		switch g[0] {
		case "cgroup":
			m.controllers = strings.Split(g[2], ",")
		case "cgroup2":
		default:
			continue
		}
		list = append(list, m)
	}
	return list
}

func (m *mount) shows(controller string) bool {
	if controller == "" {
		return m.controllers == nil
	}
	return slices.Contains(m.controllers, controller)
}

// dirs yields the directories of a group and of its parents, as far as they are visible in a mount, as paths below the
// root of the file system.
//
// Both the path of the group and the root of a mount are relative to the root of the cgroup namespace, and begin with
// "/.." where they are outside of it. In a container the mount can be another than the path suggests: the mount's own
// root is taken then, as nothing better is visible.
func dirs(mounts []mount, controller, group string) func(yield func(string) bool) {
	var best *mount
	var below string
	for i := range mounts {
		m := &mounts[i]
		if !m.shows(controller) {
			continue
		}
		rest, ok := within(m.root, group)
		switch _, child := within(group, m.root); {
		case ok && (best == nil || len(rest) > len(below)):
			best, below = m, rest
		case !ok && !child && best == nil:
			best, below = m, ""
		}
	}
	return func(yield func(string) bool) {
		if best == nil {
			return
		}
		for ; ; below = path.Dir(below) {
			if below == "/" || below == "." {
				below = ""
			}
			if !yield(strings.TrimPrefix(path.Join(best.point, below), "/")) || below == "" {
				return
			}
		}
	}
}

// within returns the path of a group below a parent, "" for the parent itself.
func within(parent, group string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(group, strings.TrimSuffix(parent, "/"))
	switch {
	case !ok || rest != "" && rest[0] != '/':
		return "", false
	case rest == "/":
		return "", true
	case strings.HasPrefix(rest+"/", "/../"):
		return "", false // outside of the namespace, whose root is the parent
	}
	return rest, true
}

// lower lowers a limit to that of a file, if it is lower.
func lower(limit *uint64, root fs.FS, dir, file string) {
	b, err := fs.ReadFile(root, path.Join(dir, file))
	if err != nil {
		return
	}
	lowerTo(limit, string(bytes.TrimSpace(b)))
}

// unlimited is beyond all limits that mean something: version 1 writes a number near 1<<63 for "max".
const unlimited = 1 << 60

func lowerTo(limit *uint64, text string) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n < unlimited && (*limit == 0 || n < *limit) {
		*limit = max(n, 1)
	}
}

// lowerHierarchical takes parents into account that are not visible. Only version 1 reports them.
func lowerHierarchical(limit *uint64, root fs.FS, dir string) {
	b, _ := fs.ReadFile(root, path.Join(dir, "memory.stat"))
	for line := range lines(b) {
		if n, ok := strings.CutPrefix(line, "hierarchical_memory_limit "); ok {
			lowerTo(limit, n)
		}
	}
}

func lines(b []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}

// unescape undoes the escapes of mountinfo, such as \040 for a space.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
