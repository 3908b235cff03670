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

// built holds the programs that tests have built, in a directory that TestMain removes.
var built = struct {
	sync.Mutex
	dir      string
	programs map[string]func() error
}{programs: map[string]func() error{}}

// build returns the path of a program that all users may execute. The first test that needs the program builds it.
func build(t *testing.T, name string, command func(path string) []string) string {
	t.Helper()
	built.Lock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "verbena-built-")
		if err != nil {
			built.Unlock()
			t.Fatal(err)
		}
		os.Chmod(dir, 0o755)
		built.dir = dir
	}
	path := filepath.Join(built.dir, name)
	once := built.programs[name]
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
		built.programs[name] = once
	}
	built.Unlock()
	if err := once(); err != nil {
		t.Fatal(err)
	}
	return path
}

// buildRawverbs builds test/rawverbs.
func buildRawverbs(t *testing.T) string {
	t.Helper()
	return build(t, "rawverbs", func(path string) []string {
		return []string{"go", "build", "-trimpath", "-o", path, "verbena/test/rawverbs"}
	})
}

// compile builds a program of testdata with libibverbs, and with librdmacm if its name begins with cm_.
func compile(t *testing.T, name string) string {
	t.Helper()
	needProgram(t, "gcc libc6-dev libibverbs-dev librdmacm-dev", "gcc")
	return build(t, name, func(path string) []string {
		argv := []string{"gcc", "-Wall", "-O1", "-o", path, "testdata/" + name + ".c", "-libverbs", "-pthread"}
		if strings.HasPrefix(name, "cm_") {
			argv = append(argv, "-lrdmacm")
		}
		return argv
	})
}

// buildC builds a static program of testdata with support for threads.
func buildC(t *testing.T, name string) string {
	t.Helper()
	needProgram(t, "gcc libc6-dev linux-libc-dev", "gcc")
	return build(t, name, func(path string) []string {
		return []string{"gcc", "-Wall", "-Werror", "-O1", "-static", "-pthread", "-o", path, "testdata/" + name + ".c"}
	})
}

// attackProgram builds one of the programs of testdata/attack: attack or escape.
func attackProgram(t *testing.T, name string) string {
	t.Helper()
	needProgram(t, "gcc libc6-dev libibverbs-dev", "gcc")
	return build(t, name, func(path string) []string {
		argv := []string{"gcc", "-Wall", "-Wno-unused-result", "-O1", fmt.Sprint("-DCONTROL_PROTOCOL=", ctl.Protocol), "-o",
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
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}
