// Package rdmanet has no code: its tests run network libraries, unmodified, over package rdmanet of the main module.
// They are a module of their own, so that those libraries are nobody else's dependencies.
package rdmanet
