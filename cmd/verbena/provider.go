package main

import (
	"os"
	"path/filepath"
)

// libDirs lists the directories below the root where distributions install shared libraries. The pattern comes last,
// because it requires a search of /usr/lib at each start.
var libDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/lib/*-linux-gnu",
}

// missingProviderMessage returns a message that names the package to install if libibverbs lacks its provider for rxe
// devices. Without the provider, programs find no device and get no error. missingProviderMessage searches directories
// below root, and returns "" if the provider exists or libibverbs is not found.
func missingProviderMessage(root string) string {
	if !existsInAny(root, libDirs, "libibverbs.so.1") {
		return ""
	}
	const driver = "etc/libibverbs.d/rxe.driver"
	_, err := os.Stat(filepath.Join(root, driver))
	missing := "/" + driver
	if err == nil {
		if existsInAny(root, libDirs, "libibverbs/librxe-rdmav*.so") {
			return ""
		}
		missing = "libibverbs/librxe-rdmav*.so"
	}
	return "libibverbs has no provider for rxe devices (" + missing + " is missing), " +
		"so programs that use it find no device: install ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, openSUSE)"
}

func existsInAny(root string, dirs []string, name string) bool {
	for _, d := range dirs {
		if found, err := filepath.Glob(filepath.Join(root, d, name)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}
