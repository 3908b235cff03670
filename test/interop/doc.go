// Package interop runs Verbena against the Linux kernel's Soft-RoCE (rdma_rxe), each in both roles, and writes a report:
// `make docs-interop` makes docs/results/interop.md of it.
//
//	network namespace
//	+-------------------------------+            +---------------------------------------------+
//	| go test                       |            | QEMU: Debian's kernel, rdma_rxe on eth0     |
//	|   | JSON lines over TCP       |   TAP      |                                             |
//	|   +--> verbena run peer.py    |============|    peer.py <--------- JSON lines over TCP   |
//	| verbena serve: rxe0 on tap0   |  RoCEv2    |    rxe0                                     |
//	+-------------------------------+            +---------------------------------------------+
//
// Programs and disturbances are run with one of the IP versions each, and with both when a report is written.
//
// peer.py is one and the same program on both sides: verbs by remote control. The tests are tables, one entry a cell
// of the matrix, that drive both peers and compare what they saw: completions, data, states. Folder guest boots the
// kernel; its root file system is the host's, so the programs are the same, too. One boot serves all tests.
//
// The tests need the build tag interop and the path of the binary in $VERBENA: `make interop` sees to both, and to the
// packages. They need Linux on amd64, Debian's packages, and root or unprivileged user namespaces, for the TAP device.
package interop
