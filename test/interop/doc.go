// Package interop runs Verbena against the Linux kernel's Soft-RoCE (rdma_rxe), with each side in both roles, and
// writes a report. `make docs-interop` writes the report to docs/results/interop.md.
//
//	network namespace
//	+-------------------------------+            +---------------------------------------------+
//	| go test                       |            | QEMU: Debian's kernel, rdma_rxe on eth0     |
//	|   | JSON lines over TCP       |   TAP      |                                             |
//	|   +--> verbena run peer.py    |============|    peer.py <--------- JSON lines over TCP   |
//	| verbena serve: rxe0 on tap0   |  RoCEv2    |    rxe0                                     |
//	+-------------------------------+            +---------------------------------------------+
//
// Programs and disturbances run with one IP version each. When a report is written, they run with both versions.
//
// The same program, peer.py, runs on both sides, and executes verbs by remote control. The tests are tables with
// one entry for each cell of the matrix. The tests drive both peers and compare their completions, data and states.
// The scripts in folder guest boot the kernel. The package's root file system~The guest's root file system One boot
// serves all tests.
//
// The tests need the build tag interop and the path of the binary in $VERBENA. `make interop` sets both, and installs
// the packages. The tests need Linux on amd64, Debian's packages, and root or unprivileged user namespaces for the TAP
// device.
package interop
