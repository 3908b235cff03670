//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runScenario runs a scenario with a device rxe0 at a loopback address and flags, and returns its exit code and its
// output.
func runScenario(t *testing.T, addr, text string, flags ...string) (code int, out string) {
	t.Helper()
	path := filepath.Join(newScratchDir(t), "scenario.yaml")
	text = "name: scenario\ntimeout: 20s\ndevices: [{name: rxe0, addr: [" + addr + "]}]\n" + text
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{verbenaBinary(t), "scenario", "run"}, append(flags, path)...)
	if os.Getuid() == 0 { // other tests also use the address
		argv = append([]string{"unshare", "--net", "sh", "-c", `ip link set lo up && exec "$0" "$@"`}, argv...)
	}
	c := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	code = exitCode(c.Run())
	return code, b.String()
}

// TestScenarioSignalReachesProgram tests that the signal of an action reaches the program and not its launcher. The
// signals are one directly after the start of the launcher, one that cannot be caught, and one that launchers do not
// forward.
func TestScenarioSignalReachesProgram(t *testing.T) {
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

// TestScenarioEndsLeftoverProcesses tests that processes that a program leaves running end with the scenario, even in a
// separate session and without a parent.
func TestScenarioEndsLeftoverProcesses(t *testing.T) {
	t.Parallel()
	code, out := runScenario(t, "127.0.94.2", `
programs:
  - name: parent
    run: [sh, -c, "setsid sh -c 'echo $$ > ${DIR}/pid; trap : HUP TERM INT; sleep 1000 & sleep 1000; sleep 1000' > /dev/null 2>&1 & while [ ! -s ${DIR}/pid ]; do sleep 0.02; done"]
`)
	if code != 0 || strings.Count(out, "was still running: killed") < 2 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// TestScenariosRunAfterReportError tests scenarios with reports that cannot be written. The later scenarios must still
// run, their output must still be printed, and no report may replace another.
func TestScenariosRunAfterReportError(t *testing.T) {
	t.Parallel()
	dir := newScratchDir(t)
	write := func(path, addr string) string {
		path = filepath.Join(dir, path)
		text := "name: " + filepath.Base(path) + "\ndevices: [{name: rxe0, addr: [" + addr +
			"]}]\nprograms: [{name: p, run: [\"true\"]}]\n"
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second, other := write("a/first.yaml", "127.0.94.3"), write("a/second.yaml", "127.0.94.4"),
		write("b/first.yaml", "127.0.94.5")
	run := func(want int, says string, args ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), verbenaBinary(t), append([]string{"scenario", "run", "--quiet"}, args...)...)
		out, err := c.CombinedOutput()
		if exitCode(err) != want || !strings.Contains(string(out), says) {
			t.Errorf("%v: got exit code %d, want %d and %q:\n%s", args, exitCode(err), want, says, out)
		}
	}
	reports := filepath.Join(dir, "reports")
	if err := os.MkdirAll(filepath.Join(reports, "first.json"), 0o777); err != nil {
		t.Fatal(err)
	}
	run(125, "ok    second.yaml", "--report", reports, first, second)
	if _, err := os.Stat(filepath.Join(reports, "second.json")); err != nil {
		t.Error(err)
	}
	run(125, "rename one", "--report", reports, first, other)
	run(0, "ok    first.yaml", first, other)
	c := exec.CommandContext(t.Context(), verbenaBinary(t), "scenario", "run", "--quiet", second)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	c.Stdout = full
	if code := exitCode(c.Run()); code != 125 {
		t.Errorf("report to a full disk: got exit code %d, want 125", code)
	}
}

// TestScenarioWebPage tests that a scenario writes its page as one file, and serves a page while it runs.
func TestScenarioWebPage(t *testing.T) {
	t.Parallel()
	dir := newScratchDir(t)
	file, page := filepath.Join(dir, "page.yaml"), filepath.Join(dir, "page.html")
	text := "name: page\ndevices: [{name: rxe0, addr: [127.0.94.6]}]\n" +
		"programs: [{name: p, run: [echo, \"</script>it works\"]}]\n"
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), verbenaBinary(t), "scenario", "run", "--html", page, "--web",
		"127.0.0.1:0", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "web page: http://127.0.0.1:") {
		t.Errorf("scenario run: got error %v, want success and the address of the page:\n%s", err, out)
	}
	b, err := os.ReadFile(page)
	if err != nil || !bytes.Contains(b, []byte(`\u003c/script\u003eit works`)) || !bytes.Contains(b, []byte("</html>")) {
		t.Errorf("page: got %d bytes and error %v, want the output of the program, escaped", len(b), err)
	}
}
