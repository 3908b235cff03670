package privilege

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"verbena/internal/testutil"

	"golang.org/x/sys/unix"
)

// If the environment requests it, TestMain acts as the process that drops privileges.
func TestMain(m *testing.M) {
	if os.Getenv("PRIVILEGE_TEST_CONFINE") != "" {
		if err := DropPrivileges(KeptCapabilities); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		s, err := ReadCapabilities("self")
		if os.Getenv("PRIVILEGE_TEST_CONFINE") == "process" {
			dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
			noNew, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
			var core unix.Rlimit
			err := unix.Getrlimit(unix.RLIMIT_CORE, &core)
			fmt.Printf("dumpable %d no_new_privs %d core %d %d umask %#o %v\n", dumpable, noNew, core.Cur, core.Max,
				unix.Umask(0), err)
			os.Exit(0)
		}
		fmt.Printf("%x %x %x %x %x %v\n", s.Inheritable, s.Permitted, s.Effective, s.Bounding, s.Ambient, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runUnprivileged runs this test binary, without cgo, as the process that drops privileges, below a command.
func runUnprivileged(t *testing.T, before ...string) string {
	return runUnprivilegedAs(t, "1", before...)
}

func runUnprivilegedAs(t *testing.T, what string, before ...string) string {
	t.Helper()
	argv := append(before, testBinaryWithoutCgo(t))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PRIVILEGE_TEST_CONFINE="+what)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run without privileges: got %v, want success:\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// testBinaryWithoutCgo returns the path of this test binary without cgo. It is the running binary, or a binary that
// testBinaryWithoutCgo builds.
func testBinaryWithoutCgo(t *testing.T) string {
	t.Helper()
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings,
		debug.BuildSetting{Key: "CGO_ENABLED", Value: "0"}) {
		path, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := filepath.Join(t.TempDir(), "privilege.test")
	build := exec.Command("go", "test", "-c", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build without cgo: got %v, want success:\n%s", err, out)
	}
	return path
}

func requireRootCapabilities(t *testing.T) CapabilitySets {
	t.Helper()
	own, err := ReadCapabilities("self")
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || own.Permitted&(1<<unix.CAP_SYS_PTRACE) == 0 {
		t.Skip("needs root with CAP_SYS_PTRACE")
	}
	return own
}

// TestDropPrivilegesKeepsListed tests that only the capabilities to keep remain.
func TestDropPrivilegesKeepsListed(t *testing.T) {
	own := requireRootCapabilities(t)
	var want uint64
	for _, c := range KeptCapabilities {
		want |= 1 << c.Number
	}
	want &= own.Permitted
	if got, want := runUnprivileged(t), fmt.Sprintf("0 %x %[1]x %[1]x 0 <nil>", want); got != want {
		t.Errorf("capabilities: got %s, want %s", got, want)
	}
}

// TestDropPrivilegesProtectsProcess tests two effects of DropPrivileges on the process: other processes cannot access
// /proc/self, and there are no core dumps.
func TestDropPrivilegesProtectsProcess(t *testing.T) {
	requireRootCapabilities(t)
	if got, want := runUnprivilegedAs(t, "process"), "dumpable 0 no_new_privs 1 core 0 0 umask 077 <nil>"; got != want {
		t.Errorf("state of the process: got %q, want %q", got, want)
	}
}

// TestUserProcessStaysAccessible tests that a process of a user other than root stays accessible to that user.
func TestUserProcessStaysAccessible(t *testing.T) {
	requireRootCapabilities(t)
	dir := t.TempDir()
	testutil.MakeSearchable(t, dir)
	b, err := os.ReadFile(testBinaryWithoutCgo(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "confined")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PRIVILEGE_TEST_CONFINE=process")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1234, Gid: 1234}}
	out, err := cmd.CombinedOutput()
	if want := "dumpable 1 no_new_privs 1 core 0 0 umask 077 <nil>"; err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("state of the process: got %q and error %v, want %q", out, err, want)
	}
}

// TestReadCapabilitiesOfMissingThreadFails tests that ReadCapabilities fails for a thread with unreadable capabilities.
func TestReadCapabilitiesOfMissingThreadFails(t *testing.T) {
	for _, who := range []string{"0", "self/task/1"} {
		if s, err := ReadCapabilities(who); err == nil || s != (CapabilitySets{}) {
			t.Errorf("Read(%q): got %+v, %v, want an error", who, s, err)
		}
	}
}

// TestParseStatusRequiresFiveSets tests that parse requires five sets of capabilities, each of them a number.
func TestParseStatusRequiresFiveSets(t *testing.T) {
	const status = "Name:\tsh\nCapInh:\t0000000000000001\nCapPrm:\t0000000000000002\nCapEff:\t0000000000000004\n" +
		"CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000010\nNoNewPrivs:\t0\n"
	want := CapabilitySets{Inheritable: 1, Permitted: 2, Effective: 4, Bounding: 1<<41 - 1, Ambient: 16}
	if got, err := parseCapabilityStatus(status); err != nil || got != want {
		t.Errorf("parse: got %+v and error %v, want %+v", got, err, want)
	}
	for _, tt := range []struct{ what, old, new, want string }{
		{"no number", "0000000000000004", "none", `"CapEff:\tnone\n"`},
		{"an empty set", "\t0000000000000010", "", `"CapAmb:\n"`},
		{"a missing set", "CapAmb", "CapOld", "the status of a process has 4 sets, want 5"},
	} {
		if _, err := parseCapabilityStatus(strings.Replace(status, tt.old, tt.new, 1)); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("parse with %s: got %v, want %s", tt.what, err, tt.want)
		}
	}
}

// TestRootWithoutPtraceKeepsCapabilities tests that root without CAP_SYS_PTRACE keeps its capabilities. With fewer
// capabilities than its programs, root could not access them.
func TestRootWithoutPtraceKeepsCapabilities(t *testing.T) {
	own := requireRootCapabilities(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv")
	}
	less := own.Permitted &^ (1 << unix.CAP_SYS_PTRACE)
	got := runUnprivileged(t, "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all")
	if want := fmt.Sprintf("0 %x %[1]x %[1]x 0 <nil>", less); got != want {
		t.Errorf("capabilities: got %s, want %s", got, want)
	}
}
