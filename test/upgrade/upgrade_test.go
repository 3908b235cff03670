//go:build upgrade

package upgrade

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"verbena/internal/testutil"
)

// oldRevisions lists the last revision with control protocol 3, and an early revision with protocol 4, which had no Go
// client yet. The environment variable OLD selects other revisions.
const oldRevisions = "29da47c 0dae913"

// pingpongScript runs a server and a client. The client tries until the server listens.
const pingpongScript = `ibv_rc_pingpong -d rxe0 -g 1 & for i in 1 2 3 4 5; do sleep 0.2; ibv_rc_pingpong -d rxe0 -g 1 127.0.0.1 && break; done; wait $! && echo rxe0`

const deviceAddress = "127.91.20.1"

// The following constants are the possible outcomes of a command.
const (
	served  = "served"
	older   = "refused: the service is older"
	newer   = "refused: the service is newer"
	unknown = "the command does not know the request"
)

func TestUpgrade(t *testing.T) {
	current := os.Getenv("VERBENA")
	if current == "" {
		t.Fatal("VERBENA: got no path of the binary, want one: use make upgrade-test")
	}
	old := os.Getenv("OLD")
	if old == "" {
		old = oldRevisions
	}
	for _, revision := range strings.Fields(old) {
		t.Run(revision, func(t *testing.T) {
			old := buildRevision(t, revision)
			t.Run("old service", func(t *testing.T) { runServiceWith(t, old, current, served, older) })
			t.Run("old command", func(t *testing.T) { runServiceWith(t, current, old, served, newer, unknown) })
		})
	}
}

// buildRevision builds the command of an old revision.
func buildRevision(t *testing.T, revision string) string {
	t.Helper()
	dir := t.TempDir()
	sh := func(command string) {
		t.Helper()
		c := exec.Command("sh", "-ec", command, "sh", revision, dir)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build %s: got %v, want success:\n%s", command, err, out)
		}
	}
	sh(`mkdir $2/source && git -C "$(git rev-parse --show-toplevel)" archive "$1" | tar -x -C $2/source`)
	sh(`cd $2/source && go build -o $2/verbena ./cmd/verbena`)
	return filepath.Join(dir, "verbena")
}

// runServiceWith runs a service of one build and commands of another build.
func runServiceWith(t *testing.T, service, command string, may ...string) {
	socket := filepath.Join(t.TempDir(), "socket")
	serve := exec.Command(service, "--socket", socket, "serve", "--link", "rxe0="+deviceAddress)
	serve.Stderr = os.Stderr
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	defer func() {
		serve.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(15 * time.Second):
			serve.Process.Kill()
			t.Error("service after the stop: got no end, want one")
		}
	}()
	testutil.Eventually(t, "the service to listen", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, command, append([]string{"--socket", socket}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for _, args := range [][]string{{"run", "--", "ibv_devices"}, {"res", "show"}, {"dev", "show"}, {"qp", "show"},
		{"wait", "--timeout", "5s"},
		{"devinfo", "rxe0"}, {"run", "--", "sh", "-c", pingpongScript}, {"stop"}} {
		out, err := run(args...)
		got := describeOutcome(out, err)
		t.Logf("%s: %s", strings.Join(args, " "), got)
		allowed := false
		for _, m := range may {
			allowed = allowed || got == m
		}
		if !allowed || args[0] == "stop" && got != served {
			t.Errorf("verbena %s: got %s and error %v, want an allowed outcome:\n%s", strings.Join(args, " "), got, err, out)
		}
		if args[0] == "run" && got == served && !strings.Contains(out, "rxe0") {
			t.Errorf("%s: got no device or a failure, want a device:\n%s", args[2], out)
		}
	}
	if out, err := run("res", "show"); err == nil || !strings.Contains(out, "no service is running") {
		t.Errorf("res show after stop: got %v, want no service:\n%s", err, out)
	}
}

func describeOutcome(out string, err error) string {
	line := out[strings.LastIndexByte(out, '\n')+1:]
	switch {
	case err == nil:
		return served
	case strings.Contains(line, "the running service") && strings.Contains(line, "is older than this command (verbena ") &&
		strings.Contains(line, "`verbena stop`"):
		return older
	case strings.Contains(line, "the running service") && strings.Contains(line, "is newer than this command (") &&
		strings.Contains(line, "use the newer verbena"):
		return newer
	case strings.Contains(line, "unexpected argument"), strings.Contains(line, "unknown flag"):
		return unknown
	}
	return "neither served nor refused"
}
