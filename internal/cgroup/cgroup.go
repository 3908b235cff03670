// Package cgroup reads the limits of this process's control groups, of versions 1 and 2.
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

// Limits holds the lowest limits of the process's groups and of all their visible parents; 0 means no limit.
type Limits struct {
	Memory uint64 // in bytes
	Tasks  uint64 // number of processes and threads
}

// ReadLimits reads the current limits. root is the root of the file system, including /proc. A file that cannot be read
// counts as no limit.
//
// An administrator can change the limits at any time.
func ReadLimits(root fs.FS) (l Limits) {
	groups := readGroups(root)
	mounts := readMounts(root)
	if p, ok := groups[""]; ok {
		for dir := range visibleGroupDirs(mounts, "", p) {
			lowerLimitFromFile(&l.Memory, root, dir, "memory.max")
			lowerLimitFromFile(&l.Memory, root, dir, "memory.high") // above this limit the kernel throttles every thread
			lowerLimitFromFile(&l.Tasks, root, dir, "pids.max")
		}
	}
	if p, ok := groups["memory"]; ok {
		for dir := range visibleGroupDirs(mounts, "memory", p) {
			lowerLimitFromFile(&l.Memory, root, dir, "memory.limit_in_bytes")
			lowerHierarchical(&l.Memory, root, dir)
		}
	}
	if p, ok := groups["pids"]; ok {
		for dir := range visibleGroupDirs(mounts, "pids", p) {
			lowerLimitFromFile(&l.Tasks, root, dir, "pids.max")
		}
	}
	return l
}

// readGroups returns the path of the process's group for each controller of version 1. The key of the path for
// version 2 is the empty string.
func readGroups(root fs.FS) map[string]string {
	groups := map[string]string{}
	b, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range linesOf(b) {
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

// cgroupMount is a mount of a cgroup hierarchy.
type cgroupMount struct {
	controllers []string // controllers of version 1; nil for version 2
	root        string   // path of the mounted group
	point       string
}

// readMounts lists the mounts of cgroup hierarchies.
func readMounts(root fs.FS) (list []cgroupMount) {
	b, _ := fs.ReadFile(root, "proc/self/mountinfo")
	for line := range linesOf(b) {
		// 35 31 0:32 /group /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
		place, kind, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(place), strings.Fields(kind)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		m := cgroupMount{root: unescapeMountinfo(f[3]), point: unescapeMountinfo(f[4])}
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

func (m *cgroupMount) hasController(controller string) bool {
	if controller == "" {
		return m.controllers == nil
	}
	return slices.Contains(m.controllers, controller)
}

// visibleGroupDirs returns the directories of a group and of its parents that are visible in a mount, as paths below
// the root of the file system.
//
// The path of the group and the root of a mount are both relative to the root of the cgroup namespace. Outside of
// the cgroup namespace, the paths begin with "/..". In a container the root of the mount may not match the path of
// the group. In that case visibleGroupDirs uses the root of the mount, which is the best visible choice.
func visibleGroupDirs(mounts []cgroupMount, controller, group string) func(yield func(string) bool) {
	var best *cgroupMount
	var below string
	for i := range mounts {
		m := &mounts[i]
		if !m.hasController(controller) {
			continue
		}
		rest, ok := relativeGroup(m.root, group)
		switch _, child := relativeGroup(group, m.root); {
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

// relativeGroup returns the path of a group below a parent, or "" for the parent itself.
func relativeGroup(parent, group string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(group, strings.TrimSuffix(parent, "/"))
	switch {
	case !ok || rest != "" && rest[0] != '/':
		return "", false
	case rest == "/":
		return "", true
	case strings.HasPrefix(rest+"/", "/../"):
		return "", false // the parent is the root of the namespace, and the group is outside of the namespace
	}
	return rest, true
}

// lowerLimitFromFile reduces a limit to the value in a file, if that value is lower.
func lowerLimitFromFile(limit *uint64, root fs.FS, dir, file string) {
	b, err := fs.ReadFile(root, path.Join(dir, file))
	if err != nil {
		return
	}
	lowerLimitTo(limit, string(bytes.TrimSpace(b)))
}

// unlimitedValue exceeds all meaningful limits. Version 1 reports a number near 1<<63 instead of "max".
const unlimitedValue = 1 << 60

func lowerLimitTo(limit *uint64, text string) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n < unlimitedValue && (*limit == 0 || n < *limit) {
		*limit = max(n, 1)
	}
}

// lowerHierarchical applies the limits of invisible parents, which only version 1 reports.
func lowerHierarchical(limit *uint64, root fs.FS, dir string) {
	b, _ := fs.ReadFile(root, path.Join(dir, "memory.stat"))
	for line := range linesOf(b) {
		if n, ok := strings.CutPrefix(line, "hierarchical_memory_limit "); ok {
			lowerLimitTo(limit, n)
		}
	}
}

func linesOf(b []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}

// unescapeMountinfo decodes the escapes of mountinfo, such as \040 for a space.
func unescapeMountinfo(s string) string {
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
