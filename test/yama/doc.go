// Package yama runs programs under `verbena run` as an ordinary user where Yama restricts ptrace to ancestors
// (/proc/sys/kernel/yama/ptrace_scope is 1): on Debian's kernel in QEMU, since it takes a kernel that has Yama, and
// root to set it. That kernel, 6.1, is also older than what the service is at its best on. `make yama` runs it.
package yama
