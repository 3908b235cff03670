package confine

import "golang.org/x/sys/unix"

// forkExitingProcess makes a process that ends at once.
func forkExitingProcess() error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
		}
	}
	return nil
}
