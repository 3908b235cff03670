// Package rdmanet contains only tests. The package's tests run unmodified network libraries over package rdmanet of
// the main module. The tests are in a separate module, so that no other package depends on those libraries.
package rdmanet
