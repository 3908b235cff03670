//go:build cgo

package confine

const cgo = true
