package open_flags_branch

import "golang.org/x/sys/unix"

func open(path string, block bool) (int, error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if !block {
		flags |= unix.O_NOCTTY | unix.O_NONBLOCK
	}
	return unix.Open(path, flags, 0) // want "open: .*by unix.Open without O_NOCTTY$"
}
