package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMissingProviderNamesPackage tests that run names the package to install if rdma-core lacks its rxe provider.
// Without the provider, libibverbs lists no device and returns no error.
func TestMissingProviderNamesPackage(t *testing.T) {
	const lib, driver, provider = "usr/lib/x86_64-linux-gnu/libibverbs.so.1", "etc/libibverbs.d/rxe.driver",
		"usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"
	for _, c := range []struct {
		name  string
		files []string
		want  string
	}{
		{"no libibverbs", nil, ""},
		{"all", []string{lib, driver, provider}, ""},
		{"Fedora", []string{"usr/lib64/libibverbs.so.1", driver, "usr/lib64/libibverbs/librxe-rdmav57.so"}, ""},
		{"no providers", []string{lib}, "/etc/libibverbs.d/rxe.driver is missing"},
		{"no library", []string{lib, driver}, "librxe-rdmav*.so is missing"},
	} {
		root := t.TempDir()
		for _, f := range c.files {
			path := filepath.Join(root, f)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got := missingProviderMessage(root)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) ||
			got != "" && !strings.Contains(got, "ibverbs-providers") {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestMissingInterpreterIsNamed tests that the error for a program without its interpreter names the interpreter.
func TestMissingInterpreterIsNamed(t *testing.T) {
	dir := t.TempDir()
	v := commandsForSocket(t, filepath.Join(dir, "sock"))
	mustRun(t, v("serve", "--daemon", "--link", "rxe0=127.91.12.1"))
	self, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	const linker, noLinker = "/lib64/ld-linux-x86-64.so.2", "/lib64/no-linux-x86-64.so.2"
	for name, c := range map[string]struct{ content, want string }{
		"script": {"#!/no/such/shell -x\necho hi\n", "/no/such/shell"},
		"binary": {strings.Replace(string(self), linker, noLinker, 1), noLinker},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.content), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "binary" && interpreterOf(path) != c.want {
			t.Logf("%s is not a program for amd64 with an interpreter", "/bin/true")
			continue
		}
		cmd := v("run", "--", path)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitNotFound ||
			!strings.Contains(string(out), path+": its interpreter "+c.want+" cannot be executed: no such file") {
			t.Errorf("%s: exit code %d, want %d\n%s", name, code, exitNotFound, out)
		}
	}
}

// TestFaultWithoutEffectIsRefused tests that a rule without an effect is refused before a service starts, and that the
// error lists the effects.
func TestFaultWithoutEffectIsRefused(t *testing.T) {
	v := commandsForSocket(t, filepath.Join(t.TempDir(), "sock"))
	mustFail(t, v("fault", "add", "--dev", "rxe0", "--qp", "17", "--limit", "3"), "no effect given",
		"--drop", "--duplicate", "--corrupt", "--reorder", "--delay", "--jitter", "--rnr", "--stop")
	mustFail(t, v("fault", "add", "--dev", "rxe0", "--stop", "--drop", "1%"), "need separate rules")
	mustFail(t, v("link", "show"), "no service is running")
}

// TestAddressInUseSuggestsFreeOne tests that the error for an address in use suggests a free one.
func TestAddressInUseSuggestsFreeOne(t *testing.T) {
	dir := t.TempDir()
	one, two := commandsForSocket(t, filepath.Join(dir, "one")), commandsForSocket(t, filepath.Join(dir, "two"))
	mustRun(t, one("serve", "--daemon", "--link", "rxe0=127.91.12.2"))
	mustFail(t, two("serve", "--link", "rxe0=127.91.12.2"),
		"4791", "is free: --link rxe0=127.0.0.", "link add rxe0 --addr 127.0.0.")
}

// TestShellLimitErrorsNameRemedy tests that an error from a limit of the shell names the limit and the remedy.
func TestShellLimitErrorsNameRemedy(t *testing.T) {
	dir := t.TempDir()
	v := commandsForSocket(t, filepath.Join(dir, "sock"))
	under := func(limit string, args ...string) *exec.Cmd {
		c := v(args...)
		c.Args = append([]string{"sh", "-c", "ulimit " + limit + `; exec "$0" "$@"`, c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
		return c
	}
	// the limit applies to the command and to the service that it starts
	for _, limit := range []string{"-n 8", "-n 10", "-n 12", "-n 14"} {
		mustFail(t, under(limit, "run", "--private", "--link", "rxe0=127.91.12.9", "--", "true"), "too many open files",
			"`ulimit -n`")
	}
}

// TestBareCommandPrintsUsage tests that verbena without arguments prints its usage and fails.
func TestBareCommandPrintsUsage(t *testing.T) {
	c := verbenaCommand(t)
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	_ = c.Run()
	if code := c.ProcessState.ExitCode(); code != exitFailure || stdout.Len() > 0 {
		t.Errorf("exit code %d, want %d; standard output %q", code, exitFailure, stdout.String())
	}
	for _, want := range []string{"Usage: verbena <command>", "run", "serve", "wait"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("standard error: got %s, want %q in it", stderr.String(), want)
		}
	}
}
