// Package rdmanet has no code. Its tests run unmodified network libraries over package rdmanet of the main module. They
// are in a separate module, so that no other package depends on those libraries.
package rdmanet
