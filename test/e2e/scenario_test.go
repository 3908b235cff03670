//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// runScenario runs a scenario with a device rxe0 of a loopback address, and returns its exit code and what it has printed.
func runScenario(t *testing.T, addr, text string) (code int, out string) {
	t.Helper()
	path := filepath.Join(scratch(t), "scenario.yaml")
	text = "name: scenario\ntimeout: 20s\ndevices: [{name: rxe0, addr: [" + addr + "]}]\n" + text
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	argv := []string{binary(t), "scenario", "run", path}
	if os.Getuid() == 0 { // the address is that of others, too
		argv = append([]string{"unshare", "--net", "sh", "-c", `ip link set lo up && exec "$0" "$@"`}, argv...)
	}
	c := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	code = exitCode(c.Run())
	return code, b.String()
}

// TestScenarioSignal: the signal of an action reaches the program, and not its launcher: one that comes as soon as the launcher has been
// started, one that cannot be caught, and one that launchers do not pass on.
func TestScenarioSignal(t *testing.T) {
	t.Parallel()
	code, out := runScenario(t, "127.0.94.1", `
programs:
  - name: killed
    run: [sh, -c, "trap : TERM; while :; do read -r _ < /proc/uptime; done"]
    expect: {killed: SIGKILL}
  - name: alarmed
    run: [sh, -c, "trap 'echo alarmed; exit 3' ALRM; echo ready; while :; do sleep 0.02; done"]
    expect: {exit: 3, output: [ready, alarmed]}
  - name: stopped
    run: [sh, -c, "l=; while IFS=' .' read -r s c _ < /proc/uptime; do if [ -z \"$l\" ]; then echo ready; elif [ $(($s$c - l)) -ge 50 ]; then exit 0; fi; l=$s$c; sleep 0.02; done"]
    expect: {within: 10s, output: [ready]}
actions:
  - {when: {start: killed}, signal: {program: killed, signal: SIGKILL}}
  - {when: {output: ready, of: alarmed}, signal: {program: alarmed, signal: SIGALRM}}
  - {name: stop, when: {output: ready, of: stopped}, signal: {program: stopped, signal: SIGSTOP}}
  - {when: {done: stop, wait: 1s}, signal: {program: stopped, signal: SIGCONT}}
`)
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
