package supervisor

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestExplainFilterError tests that the error names the reason for which the filter cannot be installed, and the
// remedy.
func TestExplainFilterError(t *testing.T) {
	linux, gVisor := func() bool { return false }, func() bool { return true }
	for _, tt := range []struct {
		err    unix.Errno
		where  func() bool
		is     error
		remedy []string
	}{
		{unix.EBUSY, linux, errNested, []string{"omit the inner", "security.syscalls.intercept", "SCMP_ACT_NOTIFY"}},
		{unix.EINVAL, gVisor, ErrUnsupported, []string{"gVisor", "--runtime=runc", "verbs/embed"}},
		{unix.ENOSYS, gVisor, ErrUnsupported, []string{"gVisor"}},
		{unix.EINVAL, linux, ErrUnsupported, []string{"Linux 5.9"}},
		{unix.EPERM, linux, ErrUnsupported, []string{"seccomp profile must allow"}},
		{unix.ENOMEM, linux, unix.ENOMEM, []string{"install the system call filter"}},
	} {
		err := explainFilterError(tt.err, tt.where)
		if !errors.Is(err, tt.is) {
			t.Errorf("%v: got %v, want %v", tt.err, err, tt.is)
		}
		for _, text := range tt.remedy {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%v: got %v, want %q in the text", tt.err, err, text)
			}
		}
		if strings.Contains(err.Error(), "gVisor") && tt.where() != true {
			t.Errorf("%v: got %v on Linux, want no mention of gVisor", tt.err, err)
		}
	}
}

func TestMentionsGVisor(t *testing.T) {
	for _, tt := range []struct {
		version, messages string
		want              bool
	}{
		{"Linux version 4.19.0-gvisor #1 SMP", "", true},
		{"Linux version 4.4.0 (gVisor)", "", true},
		{"Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", "", true},
		{"", "[    0.000000] Starting gVisor...\n", true},
		{"Linux version 6.1.0-56-amd64 (debian-kernel@lists.debian.org) #1 SMP PREEMPT_DYNAMIC",
			"[    0.000000] Linux version", false},
		{"", "", false},
	} {
		if got := mentionsGVisor(tt.version, tt.messages); got != tt.want {
			t.Errorf("mentionsGVisor(%q, %q): got %v, want %v", tt.version, tt.messages, got, tt.want)
		}
	}
	if isGVisor() {
		t.Log("this is a gVisor sandbox")
	}
}

func TestCheckProc(t *testing.T) {
	for name, c := range map[string]struct {
		self string
		err  error
		want bool
	}{
		"own":                {"7", nil, true},
		"that of the parent": {"4711", nil, false},
		"none":               {"", fs.ErrNotExist, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkProc(func(string) (string, error) { return c.self, c.err }, 7)
			if errors.Is(err, errProc) == c.want || (err == nil) != c.want {
				t.Errorf("CheckProc: got %v, want ErrProc only for a foreign /proc", err)
			}
		})
	}
	if err := CheckProc(); err != nil {
		t.Error(err)
	}
}
