package cgroup

import (
	"os"
	"testing"
	"testing/fstest"
)

// newMapFS returns a file system with the given files by path.
func newMapFS(files map[string]string) fstest.MapFS {
	t := fstest.MapFS{}
	for name, text := range files {
		t[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return t
}

const (
	v1Mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n" +
		"39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n" +
		"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	v2Mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	v1None   = "9223372036854771712\n"
)

func TestReadReturnsLowestLimits(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Limits
	}{
		{"nothing", nil, Limits{}},
		{"v2", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2Mounts,
			"sys/fs/cgroup/a/b/memory.max": "1073741824\n", "sys/fs/cgroup/a/b/pids.max": "900\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/pids.max": "max\n",
		}, Limits{Memory: 1 << 30, Tasks: 900}},
		{"v2, the parent is lower", map[string]string{
			"proc/self/cgroup": "0::/a/b/c\n", "proc/self/mountinfo": v2Mounts,
			"sys/fs/cgroup/a/b/c/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.max": "268435456\n",
			"sys/fs/cgroup/a/b/pids.max": "77\n",
		}, Limits{Memory: 256 << 20, Tasks: 77}},
		{"v2, the parent is higher", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2Mounts,
			"sys/fs/cgroup/a/b/memory.max": "268435456\n", "sys/fs/cgroup/a/b/memory.high": "268435457\n",
			"sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/b/pids.max": "77\n",
			"sys/fs/cgroup/a/pids.max": "78\n",
		}, Limits{Memory: 256 << 20, Tasks: 77}},
		{"v2, the largest limit, and no limit", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2Mounts,
			"sys/fs/cgroup/a/b/memory.max": "1152921504606846976\n", "sys/fs/cgroup/a/memory.max": "1152921504606846975\n",
			"sys/fs/cgroup/a/b/pids.max": "1152921504606846976\n",
		}, Limits{Memory: 1<<60 - 1}},
		{"v2, memory.high", map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2Mounts,
			"sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.high": "805306368\n",
		}, Limits{Memory: 768 << 20}},
		{"v2, no limit", map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2Mounts, "sys/fs/cgroup/a/memory.max": "max\n",
		}, Limits{}},
		{"v2, a namespace", map[string]string{ // the mount shows the namespace's root as its own root
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mounts, "sys/fs/cgroup/memory.max": "1048576\n",
			"sys/fs/cgroup/pids.max": "5\n",
		}, Limits{Memory: 1 << 20, Tasks: 5}},
		// The position of the group below the mount's root is unknown.
		{"v2, the namespace of a mount from before", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": "30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory.max": "4194304\n",
		}, Limits{Memory: 4 << 20}},
		{"v2, outside of the namespace's root", map[string]string{
			"proc/self/cgroup": "0::/../other\n", "proc/self/mountinfo": v2Mounts, "sys/fs/cgroup/memory.max": "4194304\n",
			"other/memory.max": "1\n", "sys/fs/other/memory.max": "1\n",
		}, Limits{Memory: 4 << 20}},
		{"v2, a mount outside of the namespace's root", map[string]string{
			"proc/self/cgroup":           "0::/../x/y\n",
			"proc/self/mountinfo":        "30 23 0:26 /../x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/y/memory.max": "4194304\n",
		}, Limits{Memory: 4 << 20}},
		{"v2, a container's bind mount", map[string]string{
			"proc/self/cgroup":                "0::/kube/pod/abc/sub\n",
			"proc/self/mountinfo":             "30 23 0:26 /kube/pod/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/sub/memory.max":    "max\n",
			"sys/fs/cgroup/memory.max":        "2097152\n",
			"sys/fs/cgroup/sub/pids.max":      "12\n",
			"sys/fs/cgroup/kube/pod/pids.max": "1\n", // belongs to another pod
		}, Limits{Memory: 2 << 20, Tasks: 12}},
		{"v2, a name with the same beginning", map[string]string{
			"proc/self/cgroup":    "0::/abcd/x\n",
			"proc/self/mountinfo": "30 23 0:26 /abc /mnt/abc rw - cgroup2 cgroup2 rw\n" + v2Mounts,
			"mnt/abc/memory.max":  "1\n", "mnt/abc/d/x/memory.max": "1\n", "sys/fs/cgroup/abcd/memory.max": "2097152\n",
		}, Limits{Memory: 2 << 20}},
		{"v2, the mount shows only a child", map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": "30 23 0:26 /a/b /mnt rw - cgroup2 cgroup2 rw\n",
			"mnt/memory.max": "1\n",
		}, Limits{}},
		{"two mounts, of which one shows more", map[string]string{
			"proc/self/cgroup":    "0::/a/b\n",
			"proc/self/mountinfo": "30 23 0:26 /a/b /mnt rw - cgroup2 cgroup2 rw\n" + v2Mounts,
			"mnt/memory.max":      "max\n", "sys/fs/cgroup/a/memory.max": "2097152\n",
		}, Limits{Memory: 2 << 20}},
		{"a mount point with a space", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": "30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n",
			"my groups/memory.max": "2097152\n",
		}, Limits{Memory: 2 << 20}},
		{"v1", map[string]string{
			"proc/self/cgroup": "8:pids:/p\n4:memory:/m/n\n0::/\n", "proc/self/mountinfo": v1Mounts,
			"sys/fs/cgroup/memory/m/n/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes":   v1None,
			"sys/fs/cgroup/pids/p/pids.max":                  "900\n", "sys/fs/cgroup/pids/m/n/pids.max": "1\n",
		}, Limits{Memory: 1 << 30, Tasks: 900}},
		{"v1, no limit", map[string]string{
			"proc/self/cgroup": "8:pids:/\n4:memory:/\n", "proc/self/mountinfo": v1Mounts,
			"sys/fs/cgroup/memory/memory.limit_in_bytes": v1None,
		}, Limits{}},
		{"v1, the parent is lower", map[string]string{
			"proc/self/cgroup": "4:memory:/m/n\n", "proc/self/mountinfo": v1Mounts,
			"sys/fs/cgroup/memory/m/n/memory.limit_in_bytes": v1None,
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes":   "268435456\n",
		}, Limits{Memory: 256 << 20}},
		{"v1, the parent is higher", map[string]string{
			"proc/self/cgroup": "4:memory:/m/n\n", "proc/self/mountinfo": v1Mounts,
			"sys/fs/cgroup/memory/m/n/memory.limit_in_bytes": "268435456\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes":   "268435457\n",
			"sys/fs/cgroup/memory/m/n/memory.stat":           "hierarchical_memory_limit 268435458\n",
		}, Limits{Memory: 256 << 20}},
		{"v1, a parent that is not visible", map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/abc\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": v1None,
			"sys/fs/cgroup/memory/memory.stat":           "cache 0\nhierarchical_memory_limit 268435456\nhierarchical_memsw_limit 1\n",
		}, Limits{Memory: 256 << 20}},
		{"v1, controllers together", map[string]string{
			"proc/self/cgroup":                     "4:memory,pids:/m\n",
			"proc/self/mountinfo":                  "35 31 0:32 / /cg rw - cgroup cgroup rw,memory,pids\n",
			"cg/m/memory.limit_in_bytes":           "268435456\n",
			"cg/m/pids.max":                        "6\n",
			"sys/fs/cgroup/pids/unrelated/pids.ma": "1\n",
		}, Limits{Memory: 256 << 20, Tasks: 6}},
		{"v1 and v2", map[string]string{
			"proc/self/cgroup": "4:memory:/m\n0::/u\n", "proc/self/mountinfo": v1Mounts,
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "268435456\n", "sys/fs/cgroup/unified/u/pids.max": "30\n",
		}, Limits{Memory: 256 << 20, Tasks: 30}},
		{"a limit of 0 bytes", map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2Mounts, "sys/fs/cgroup/a/pids.max": "0\n",
		}, Limits{Tasks: 1}},
		{"nonsense", map[string]string{
			"proc/self/cgroup":    "0::\n::\n:\nx\n",
			"proc/self/mountinfo": "x\n - \n1 2 3 4 5 - cgroup2 x\n30 23 0:26 / / rw - cgroup2 cgroup2 rw\n",
			"memory.max":          "-1\n", "pids.max": "many\n",
		}, Limits{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ReadLimits(newMapFS(c.files)); got != c.want {
				t.Errorf("Read: got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestReadParsesThisMachine tests that the files of this machine can be parsed.
func TestReadParsesThisMachine(t *testing.T) { t.Logf("%+v", ReadLimits(os.DirFS("/"))) }

func FuzzRead(f *testing.F) {
	f.Add("0::/a/b\n4:memory:/m", v1Mounts+v2Mounts, "5\n")
	f.Add("0::/../..", "30 23 0:26 /../.. /a\\040b rw - cgroup2 cgroup2 rw\n", "max")
	f.Fuzz(func(t *testing.T, groups, mounts, value string) {
		ReadLimits(newMapFS(map[string]string{
			"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, "memory.max": value, "sys/fs/cgroup/memory.max": value,
			"sys/fs/cgroup/memory/m/memory.stat": "hierarchical_memory_limit " + value,
		}))
	})
}
