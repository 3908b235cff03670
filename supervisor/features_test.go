package supervisor

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFeatures compares what is found with the kernel's version: the one that has a feature has it, unless it is not
// allowed.
func TestFeatures(t *testing.T) {
	list, err := Features()
	if errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNested) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	here := version(unix.ByteSliceToString(u.Release[:]))
	last := 0
	for _, f := range list {
		since := version(f.Since)
		if since < last {
			t.Errorf("%s comes after what is newer", f.Name)
		}
		last = since
		if old := f.Here && here < since; old {
			t.Errorf("%s is found on a kernel older than %s", f.Name, f.Since)
		}
		// What no seccomp profile keeps from a process that may install a filter. Landlock may be turned off at boot.
		if sure := f.Name != "pidfd_getfd" && f.Name != "Landlock"; sure && !f.Here && here >= since {
			t.Errorf("%s is not found, and the kernel is not older than %s", f.Name, f.Since)
		}
		if f.Without == "" {
			t.Errorf("%s: nothing is said of kernels without it", f.Name)
		}
	}
	if !strings.Contains(Access(), "memory") {
		t.Errorf("got %q", Access())
	}
}

// version makes a number of a kernel's version, such as 6.12.
func version(text string) int {
	major, rest, _ := strings.Cut(text, ".")
	minor := rest
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		minor = rest[:i]
	}
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	return a*1000 + b
}
