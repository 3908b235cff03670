package open_flags_cleared

import "golang.org/x/sys/unix"

func open(path string) (int, error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOCTTY
	return unix.Open(path, flags&^unix.O_NOCTTY, 0) // want "open: .*by unix.Open without O_NOCTTY$"
}

func masked(path string, how int) (int, error) {
	return unix.Open(path, (how|unix.O_NOCTTY|unix.O_CLOEXEC)&unix.O_ACCMODE, 0) // want "open: .*by unix.Open without O_NOCTTY and O_CLOEXEC$"
}
