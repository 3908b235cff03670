package privilege

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is the process that gives up privileges, if it is told to.
func TestMain(m *testing.M) {
	if os.Getenv("PRIVILEGE_TEST_CONFINE") != "" {
		if err := Confine(Kept); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		s, err := Read("self")
		fmt.Printf("%x %x %x %x %x %v\n", s.Inheritable, s.Permitted, s.Effective, s.Bounding, s.Ambient, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// confined builds these tests without cgo, and runs them as such a process below a command.
func confined(t *testing.T, before ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "privilege.test")
	build := exec.Command("go", "test", "-c", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	argv := append(before, path)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PRIVILEGE_TEST_CONFINE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func root(t *testing.T) Sets {
	t.Helper()
	own, err := Read("self")
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || own.Permitted&(1<<unix.CAP_SYS_PTRACE) == 0 {
		t.Skip("needs root with CAP_SYS_PTRACE")
	}
	return own
}

// Nothing is left but what is kept.
func TestConfine(t *testing.T) {
	own := root(t)
	var want uint64
	for _, c := range Kept {
		want |= 1 << c.Number
	}
	want &= own.Permitted
	if got, want := confined(t), fmt.Sprintf("0 %x %[1]x %[1]x 0 <nil>", want); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Root without CAP_SYS_PTRACE keeps its capabilities: with fewer than its programs have it could not access them.
func TestConfineWithoutPtrace(t *testing.T) {
	own := root(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv")
	}
	less := own.Permitted &^ (1 << unix.CAP_SYS_PTRACE)
	got := confined(t, "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all")
	if want := fmt.Sprintf("0 %x %[1]x %[1]x 0 <nil>", less); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
