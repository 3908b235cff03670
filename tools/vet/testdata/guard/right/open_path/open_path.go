package open_path

import (
	"os"

	"golang.org/x/sys/unix"
)

func file(dir int, path string, write bool, how int) {
	unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	unix.Openat(dir, path, how|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC, 0)
	unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	os.ReadDir(path)
	flags := unix.O_RDONLY | unix.O_NOCTTY | unix.O_CLOEXEC
	if write {
		flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NONBLOCK
	}
	unix.Open(path, flags, 0)
}

func constants() {
	os.ReadFile("/proc/self/status")
	os.Open("/sys/class/net")
	os.Open(os.DevNull)
	unix.Open("/proc/sys/kernel/pid_max", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func status(path string) ([]byte, error) {
	return os.ReadFile(path) //verbena:allow open the path is made of a number below proc
}
