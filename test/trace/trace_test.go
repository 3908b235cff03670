package trace

import (
	"slices"
	"testing"
)

func TestCheckFindsViolations(t *testing.T) {
	const (
		recv     = `ioctl(37, SECCOMP_IOCTL_NOTIF_RECV, {id=0x1, pid=8772, flags=0, data={nr=__NR_openat}}) = 0`
		valid    = `ioctl(37, SECCOMP_IOCTL_NOTIF_ID_VALID, [0x1]) = 0`
		invalid  = `ioctl(37, SECCOMP_IOCTL_NOTIF_ID_VALID, [0x1]) = -1 ENOENT (No such file or directory)`
		answer   = `ioctl(37, SECCOMP_IOCTL_NOTIF_SEND, {id=0x1, val=3, error=0, flags=0}) = 0`
		fail     = `ioctl(37, SECCOMP_IOCTL_NOTIF_SEND, {id=0x1, val=0, error=-EACCES, flags=0}) = 0`
		goOn     = `ioctl(37, SECCOMP_IOCTL_NOTIF_SEND, {id=0x1, val=0, error=0, flags=SECCOMP_USER_NOTIF_FLAG_CONTINUE}) = 0`
		install  = `ioctl(37, SECCOMP_IOCTL_NOTIF_ADDFD, {id=0x1, flags=SECCOMP_ADDFD_FLAG_SETFD, srcfd=46, newfd=15000}) = 15000`
		send     = `ioctl(37, SECCOMP_IOCTL_NOTIF_ADDFD, {id=0x1, flags=SECCOMP_ADDFD_FLAG_SEND, srcfd=46, newfd=0}) = 7`
		dir      = `openat(AT_FDCWD, "/proc/8772", O_RDONLY|O_CLOEXEC|O_PATH|O_DIRECTORY) = 40`
		status   = `openat(40, "status", O_RDONLY|O_NOFOLLOW|O_CLOEXEC) = 41`
		pidfd    = `pidfd_open(8772, PIDFD_NONBLOCK)        = 41`
		number   = `statx(AT_FDCWD, "/proc/8772/fd/15000", AT_STATX_DONT_SYNC, STATX_INO, {stx_mask=STATX_INO}) = 0`
		read     = `process_vm_readv(8772, [{iov_base="x", iov_len=256}], 1, [{iov_base=0x7fead7216dd5, iov_len=256}], 1, 0) = 256`
		write    = `process_vm_writev(8772, [{iov_base="x", iov_len=8}], 1, [{iov_base=0x7fead7216dd5, iov_len=8}], 1, 0) = 8`
		ask      = `prlimit64(8772, RLIMIT_NOFILE, NULL, {rlim_cur=1024, rlim_max=4096}) = 0`
		set      = `prlimit64(8772, RLIMIT_NOFILE, {rlim_cur=15001, rlim_max=20000}, NULL) = 0`
		zero     = `tgkill(8772, 8773, 0) = 0`
		kill     = `kill(8772, SIGKILL) = 0`
		lives    = `ppoll([{fd=41, events=POLLIN}], 1, {tv_sec=0, tv_nsec=0}, NULL, 0) = 0 (Timeout)`
		waits    = `ppoll([{fd=37, events=POLLIN}, {fd=16, events=POLLIN}], 2, NULL, NULL, 0) = 1 ([{fd=37, revents=POLLIN}])`
		denied   = `process_vm_writev(8772, [{iov_base="x", iov_len=8}], 1, [{iov_base=NULL, iov_len=8}], 1, 0) = -1 EFAULT (Bad address)`
		quote    = `process_vm_readv(8772, [{iov_base="/dev/shm/verbena-0-1/run/1-2/uverbs0.1.queues", iov_len=256}], 1, [], 1, 0) = 256`
		own      = `tgkill(8582, 8591, SIGURG) = 0`
		ownMaps  = `openat(AT_FDCWD, "/proc/8582/maps", O_RDONLY) = 3`
		selfFD   = `openat2(AT_FDCWD, "/proc/self/fd/45", {flags=O_RDWR|O_NOCTTY|O_NONBLOCK|O_CLOEXEC, resolve=0}, 24) = 46`
		create   = `openat(39, "uverbs0.1.queues", O_RDWR|O_CREAT|O_EXCL|O_NOCTTY|O_NOFOLLOW|O_CLOEXEC, 0600) = 45`
		follow   = `openat(39, "uverbs0.1.queues", O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 45`
		again    = `openat(39, "uverbs0.1.queues", O_RDWR|O_CLOEXEC) = 45`
		absolute = `openat(AT_FDCWD, "/dev/shm/verbena-0-1/run/1-2/uverbs0.1.queues", O_RDWR|O_CREAT|O_EXCL|O_NOCTTY|O_NOFOLLOW, 0600) = 45`
		chown    = `fchownat(AT_FDCWD, "/dev/shm/verbena-0-1/run/1-2/uverbs0.1.queues", 65534, -1, 0) = 0`
		watch    = `inotify_add_watch(18, "/dev/shm/verbena-0-1/run/1-2/uverbs0.1.queues", IN_CLOSE_WRITE) = 1`
		remove   = `unlinkat(39, "uverbs0.1.queues", 0) = 0`
		other    = `newfstatat(AT_FDCWD, "/dev/shm/verbena-0-1/run/1-2/evil", {}, 0) = 0`
		rmdir    = `unlinkat(AT_FDCWD, "/dev/shm/verbena-0-1/run/1-8742", AT_REMOVEDIR) = 0`
		signal   = `--- SIGURG {si_signo=SIGURG, si_code=SI_TKILL, si_pid=8582, si_uid=0} ---`
	)
	for _, c := range []struct {
		name  string
		lines []string
		want  []Violation
	}{
		{"nothing", nil, nil},
		{"found and proven", []string{recv, dir, status, valid, pidfd, valid, read, valid, answer}, nil},
		{"not proven", []string{recv, dir, status, answer}, []Violation{{Numbers, dir}}},
		{"proven only before", []string{recv, dir, valid, pidfd, answer}, []Violation{{Numbers, pidfd}}},
		{"the proof has failed", []string{recv, number, invalid, answer}, []Violation{{Numbers, number}}},
		{"the proof of another call", []string{recv, valid, answer, recv, read, answer}, []Violation{{Numbers, read}}},
		{"an error needs no proof", []string{recv, dir, fail}, nil},
		{"a continued call needs no proof", []string{recv, read, number, goOn}, nil},
		{"a lookup of a continued call does not count for the next", []string{recv, read, goOn, recv, valid, answer}, nil},
		{"installed without a proof", []string{recv, ask, install, valid, answer}, []Violation{{Numbers, ask}}},
		{"sent without a proof", []string{recv, zero, send}, []Violation{{Numbers, zero}}},
		{"changed after the proof", []string{recv, dir, valid, set, write, answer}, nil},
		{"changed before the proof", []string{recv, set, write, kill, valid, answer},
			[]Violation{{Changes, set}, {Changes, write}, {Changes, kill}}},
		{"after the answer", []string{recv, valid, answer, write, read}, []Violation{{Memory, write}, {Memory, read}}},
		{"outside of calls", []string{read, signal, write, set, dir},
			[]Violation{{Memory, read}, {Memory, write}, {Memory, set}}},
		{"proven by a pidfd", []string{recv, number, lives, answer}, nil},
		{"another poll is not a proof", []string{recv, number, waits, answer}, []Violation{{Numbers, number}}},
		{"a pidfd is not a proof for changes", []string{recv, lives, set, answer}, []Violation{{Changes, set}}},
		{"a failed call is not an access", []string{recv, denied, answer, denied}, nil},
		{"a path in memory is not an access", []string{recv, quote, goOn}, nil},
		{"this process", []string{own, ownMaps, selfFD, recv, own, ownMaps, selfFD, answer}, nil},
		{"a file's life", []string{create, selfFD, remove, rmdir}, nil},
		{"links are followed", []string{follow}, []Violation{{Paths, follow}}},
		{"opened again", []string{create, again}, []Violation{{Paths, again}}},
		{"files named by their paths", []string{absolute, chown, watch, other},
			[]Violation{{Paths, absolute}, {Paths, chown}, {Paths, watch}, {Paths, other}}},
	} {
		if got := Check(8582, c.lines); !slices.Equal(got, c.want) {
			t.Errorf("Check of %s: got %v, want %v", c.name, got, c.want)
		}
	}
}
