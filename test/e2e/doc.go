// Package e2e runs real programs under bin/verbena: Debian's ibv_* and perftest programs and pyverbs. The package
// checks their output, their packets, and the objects and processes that remain.
//
// The tests need the build tag e2e and the path of the binary in $VERBENA; `make e2e` sets both. A test that lacks
// root, a program or a kernel feature is skipped with a message that names it. With CI=true it fails instead. With
// E2E_FULL=1 the matrix runs with full counts (ten thousand iterations of each size), which takes longer.
//
// Every test has a separate service, on loopback addresses or in network namespaces that the test creates.
package e2e
