package open_path

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const quick = unix.O_RDONLY | unix.O_NONBLOCK

func file(dir int, path string, how int) error {
	if _, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil { // want "open: .*file opens a path by unix.Open without O_NOCTTY$"
		return err
	}
	if _, err := unix.Openat(dir, path, how|unix.O_NOCTTY, 0); err != nil { // want "open: .*file opens a path by unix.Openat without O_CLOEXEC$"
		return err
	}
	if _, err := unix.Open(path, quick, 0); err != nil { // want "open: .*by unix.Open without O_NOCTTY and O_CLOEXEC"
		return err
	}
	if _, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: unix.O_CLOEXEC}); err != nil { // want "open: .*by unix.Openat2"
		return err
	}
	if _, err := os.OpenFile(path, os.O_RDWR, 0); err != nil { // want "open: .*by os.OpenFile without O_NOCTTY$"
		return err
	}
	_, err := os.ReadFile(filepath.Join(path, "status")) // want "open: .*by os.ReadFile without O_NOCTTY$"
	return err
}

// By constants, too, where that is a terminal's or leads to one.
func terminal() {
	os.Open("/dev/tty")                                  // want "open: .*by os.Open without O_NOCTTY"
	os.Open("/proc/self/fd/3")                           // want "open: .*by os.Open without O_NOCTTY"
	unix.Open("/proc/self/status", unix.O_RDONLY, 0)     // want "open: .*by unix.Open without O_CLOEXEC$"
	unix.Open("/proc/../dev/tty", unix.O_CLOEXEC|0x8, 0) // want "open: .*by unix.Open without O_NOCTTY$"
}
