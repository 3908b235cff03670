//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"verbena/internal/ctl"
)

// builtPrograms holds the programs that tests have built, in a directory that TestMain removes.
var builtPrograms = struct {
	sync.Mutex
	dir      string
	programs map[string]func() error
}{programs: map[string]func() error{}}

// buildProgram returns the path of a program that all users may execute. The first test that needs the program builds
// it.
func buildProgram(t *testing.T, name string, command func(path string) []string) string {
	t.Helper()
	builtPrograms.Lock()
	if builtPrograms.dir == "" {
		dir, err := os.MkdirTemp("", "verbena-built-")
		if err != nil {
			builtPrograms.Unlock()
			t.Fatal(err)
		}
		os.Chmod(dir, 0o755)
		builtPrograms.dir = dir
	}
	path := filepath.Join(builtPrograms.dir, name)
	once := builtPrograms.programs[name]
	if once == nil {
		once = sync.OnceValue(func() error {
			argv := command(path)
			c := exec.Command(argv[0], argv[1:]...)
			c.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w\n%s", argv, err, out)
			}
			return nil
		})
		builtPrograms.programs[name] = once
	}
	builtPrograms.Unlock()
	if err := once(); err != nil {
		t.Fatal(err)
	}
	return path
}

// buildRawverbs builds test/rawverbs.
func buildRawverbs(t *testing.T) string {
	t.Helper()
	return buildProgram(t, "rawverbs", func(path string) []string {
		return []string{"go", "build", "-trimpath", "-o", path, "verbena/test/rawverbs"}
	})
}

// buildWithLibibverbs builds a program of testdata with libibverbs, and with librdmacm if its name begins with cm_.
func buildWithLibibverbs(t *testing.T, name string) string {
	t.Helper()
	needProgram(t, "gcc libc6-dev libibverbs-dev librdmacm-dev", "gcc")
	return buildProgram(t, name, func(path string) []string {
		argv := []string{"gcc", "-Wall", "-O1", "-o", path, "testdata/" + name + ".c", "-libverbs", "-pthread"}
		if strings.HasPrefix(name, "cm_") {
			argv = append(argv, "-lrdmacm")
		}
		return argv
	})
}

// buildStaticC builds a static program of testdata with support for threads.
func buildStaticC(t *testing.T, name string) string {
	t.Helper()
	needProgram(t, "gcc libc6-dev linux-libc-dev", "gcc")
	return buildProgram(t, name, func(path string) []string {
		return []string{"gcc", "-Wall", "-Werror", "-O1", "-static", "-pthread", "-o", path, "testdata/" + name + ".c"}
	})
}

// buildAttackProgram builds one of the programs of testdata/attack: attack or escape.
func buildAttackProgram(t *testing.T, name string) string {
	t.Helper()
	needProgram(t, "gcc libc6-dev libibverbs-dev", "gcc")
	return buildProgram(t, name, func(path string) []string {
		argv := []string{"gcc", "-Wall", "-Wno-unused-result", "-O1", fmt.Sprint("-DCONTROL_PROTOCOL=",
			ctl.ProtocolVersion), "-o",
			path}
		if name == "escape" {
			return append(argv, "-static", "testdata/attack/escape.c")
		}
		for _, s := range []string{"main", "privilege", "denial", "games", "socket", "misc", "process"} {
			argv = append(argv, "testdata/attack/"+s+".c")
		}
		return append(argv, "-libverbs", "-pthread")
	})
}

func TestMain(m *testing.M) {
	code := m.Run()
	if builtPrograms.dir != "" {
		os.RemoveAll(builtPrograms.dir)
	}
	os.Exit(code)
}
