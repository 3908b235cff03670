package main

import (
	"os"
	"path/filepath"
)

// libDirs are the directories of distributions for shared libraries, below the root.
var libDirs = []string{"usr/lib/*-linux-gnu", "usr/lib64", "usr/lib"}

// missingProvider returns a message with the package to install if libibverbs is installed without its provider for rxe
// devices. In that case programs find no device, without an error. It searches the directories of distributions below
// root, and returns "" if nothing is missing or libibverbs is not found.
func missingProvider(root string) string {
	if !anyOf(root, libDirs, "libibverbs.so.1") {
		return ""
	}
	const driver = "etc/libibverbs.d/rxe.driver"
	_, err := os.Stat(filepath.Join(root, driver))
	missing := "/" + driver
	if err == nil {
		if anyOf(root, libDirs, "libibverbs/librxe-rdmav*.so") {
			return ""
		}
		missing = "libibverbs/librxe-rdmav*.so"
	}
	return "libibverbs has no provider for rxe devices (" + missing + " is missing), " +
		"so programs that use it find no device: install ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, openSUSE)"
}

func anyOf(root string, dirs []string, name string) bool {
	for _, d := range dirs {
		if found, err := filepath.Glob(filepath.Join(root, d, name)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}
