package supervisor

import (
	"errors"
	"strings"
	"testing"
)

// TestFeaturesMatchKernelVersion compares the detected features with the version of the kernel. A kernel of sufficient
// version must have a feature unless a policy denies it.
func TestFeaturesMatchKernelVersion(t *testing.T) {
	list, err := Features()
	if errors.Is(err, ErrUnsupported) || errors.Is(err, errNested) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	here := kernelVersion()
	last := 0
	for _, f := range list {
		since := parseKernelVersion(f.Since)
		if since < last {
			t.Errorf("place of %s in the list: got it after a newer feature, want the order of versions", f.Name)
		}
		last = since
		if old := f.Here && here < since; old {
			t.Errorf("%s: got true on a kernel older than %s, want false", f.Name, f.Since)
		}
		// No seccomp profile denies these features to a process that may install a filter. Landlock can be disabled
		// at boot.
		if sure := f.Name != "pidfd_getfd" && f.Name != "Landlock"; sure && !f.Here && here >= since {
			t.Errorf("%s: got false on a kernel not older than %s, want true", f.Name, f.Since)
		}
		if f.Without == "" {
			t.Errorf("%s: got an empty Without, want a text", f.Name)
		}
	}
	if !strings.Contains(DescribeAccess(), "memory") {
		t.Errorf("Access: got %q, want a text about memory", DescribeAccess())
	}
}
