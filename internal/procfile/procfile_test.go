package procfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadRefusesSymlink(t *testing.T) {
	if b, err := ReadNoFollow("/proc/self/comm"); err != nil || len(b) < 2 {
		t.Errorf("Read of /proc/self/comm: got %q and error %v, want the name", b, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/proc/self/comm", link); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadNoFollow(link); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Read of a link: got %v, want %v", err, unix.ELOOP)
	}
	if _, err := ReadNoFollow(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read of a missing file: got %v, want %v", err, os.ErrNotExist)
	}
}
