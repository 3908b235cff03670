// Package e2e runs real programs under bin/verbena: Debian's ibv_* and perftest programs and pyverbs. It checks their
// output, the packets, and the objects and processes that they leave.
//
// The tests need the build tag e2e and the path of the binary in $VERBENA; `make e2e` sets both. A test that needs
// root, a program or a kernel feature names it when it skips, and fails instead with CI=true. With E2E_FULL=1 the
// matrix runs with full counts (ten thousand iterations of each size), which takes a while.
//
// Every test has a service of its own, on loopback addresses or in network namespaces made by the test.
package e2e
