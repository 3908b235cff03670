// Package yama runs programs under `verbena run` as an ordinary user if Yama restricts ptrace to ancestors
// (/proc/sys/kernel/yama/ptrace_scope is 1). The package uses Debian's kernel in QEMU, because the test needs a
// kernel with Yama, and root to set the scope. That kernel, version 6.1, lacks some features that the service uses
// on newer kernels. `make yama` runs the test.
package yama
