//go:build e2e

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestClients runs clients other than dynamically linked C programs. Each client registers memory, connects a queue
// pair to itself, and transfers data.
func TestClients(t *testing.T) {
	t.Parallel()
	const raw, device = "testdata/clients/raw.c", "/dev/infiniband/uverbs0"
	musl := func(flags ...string) func(t *testing.T, path string) []string {
		return func(t *testing.T, path string) []string {
			// The search path lists the kernel's headers after the headers of musl.
			argv := []string{"musl-gcc", "-Wall", "-Werror", "-O1", "-idirafter", "/usr/include", "-idirafter",
				multiarchHeaders(t),
				"-o", path}
			return append(append(argv, flags...), raw)
		}
	}
	for _, c := range []struct {
		name  string
		needs func(t *testing.T)
		build func(t *testing.T, path string) []string
		run   []string // set if the program needs no build
		args  []string
	}{
		{name: "musl", needs: needMusl, build: musl(), args: []string{device}},
		{name: "musl static", needs: needMusl, build: musl("-static"), args: []string{device}},
		{name: "static", build: func(t *testing.T, path string) []string {
			return []string{"gcc", "-Wall", "-O1", "-DRDMA_STATIC_PROVIDERS=rxe", "-static", "-o", path, "testdata/headertype.c",
				"-Wl,--start-group", "-l" + staticProviderLibrary(t), "-libverbs", "-lnl-route-3", "-lnl-3", "-lpthread",
				"-Wl,--end-group"}
		}, needs: func(t *testing.T) { needProgram(t, "gcc libc6-dev libibverbs-dev", "gcc") }},
		{name: "rust", build: func(t *testing.T, path string) []string {
			return []string{"rustc", "--edition", "2021", "-O", "-o", path, "testdata/clients/loop.rs"}
		}, needs: func(t *testing.T) {
			if _, err := exec.LookPath("rustc"); err != nil {
				t.Skip("needs rustc: apt-get install rustc")
			}
		}},
		{name: "python", run: []string{"/usr/bin/python3", "testdata/clients/loop.py"}, needs: func(t *testing.T) {
			needProgram(t, "python3", "/usr/bin/python3")
			needCondition(t, exec.Command("/usr/bin/python3", "-c", "import pyverbs.device").Run() == nil,
				"python3-pyverbs: scripts/deps installs it")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.needs(t)
			argv := c.run
			if c.build != nil {
				argv = append([]string{buildProgram(t, "client-"+strings.ReplaceAll(c.name, " ", "-"), func(path string) []string {
					return c.build(t, path)
				})}, c.args...)
			}
			for _, path := range packetPaths {
				w := startService(t, testUsers()[0], "", append([]string{"--link", "rxe0=" + unusedAddr()}, path.args...)...)
				if out := w.mustRun(append([]string{"run", "--"}, argv...)...); out != "ok\n" {
					t.Errorf("%s: %s", path.name, out)
				}
				w.awaitNoProgramObjects()
			}
		})
	}
}

func needMusl(t *testing.T) { needProgram(t, "musl-tools linux-libc-dev", "musl-gcc") }

// multiarchHeaders returns the directory of the C headers for this architecture.
func multiarchHeaders(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/include/*-linux-gnu")
	needCondition(t, len(found) > 0, "linux-libc-dev: scripts/deps installs it")
	return found[0]
}

// staticProviderLibrary returns the name of the static library that contains the rxe provider.
func staticProviderLibrary(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*-linux-gnu/librxe-rdmav*.a")
	needCondition(t, len(found) > 0, "libibverbs-dev: scripts/deps installs it")
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "lib"), ".a")
}
