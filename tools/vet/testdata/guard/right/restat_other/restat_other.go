package restat_other

import "golang.org/x/sys/unix"

// Another path, another folder, and a look after the open.
func other(a, b int, path, second string) {
	var st unix.Stat_t
	unix.Fstatat(a, path, &st, 0)
	unix.Openat(b, path, unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	unix.Openat(a, second, unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	unix.Fstatat(b, path, &st, 0)
}
