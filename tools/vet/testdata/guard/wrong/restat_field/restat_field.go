package restat_field

import "golang.org/x/sys/unix"

type file struct{ path string }

func (f *file) open() (int, error) {
	for range 3 {
		var st unix.Stat_t
		if unix.Lstat(f.path, &st) == nil && st.Uid == 0 {
			break
		}
	}
	return unix.Open(f.path, unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, 0) // want "restat: .*open opens a path that it has passed to unix.Lstat"
}
