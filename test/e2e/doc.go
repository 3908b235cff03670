// Package e2e runs the real programs, Debian's ibv_*, perftest and pyverbs, under bin/verbena, and looks at what
// they print, at the packets, and at what is left behind.
//
// The tests need the build tag e2e and the path of the binary in $VERBENA; `make e2e` sees to both. A test that
// needs root, a program or a kernel ability says so when it skips, and with CI=true fails instead. With
// E2E_FULL=1 the matrix runs with full counts (ten thousand iterations of each size), which takes a while.
//
// Every test has a service of its own, on loopback addresses or in network namespaces that it made.
package e2e
