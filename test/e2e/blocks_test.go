//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// shellBlock is a shell recipe in a documentation page.
type shellBlock struct {
	file    string
	line    int
	console bool // commands after "$ ", with their output
	text    string
	// HTML comments before the block set these fields:
	notRun string           // reason for skipping the block
	needs  string           // requirement of the block, such as "a service"
	prints []*regexp.Regexp // patterns that match the output
}

func (b *shellBlock) name() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

var (
	blockFence   = regexp.MustCompile("^( *)```([a-z]*) ?(.*)$")
	blockComment = regexp.MustCompile(`^ *<!-- (not run|needs|prints): (.*[^ ])(?: +)-->$`)
)

// findShellBlocks returns the shell recipes of a Markdown file.
func findShellBlocks(t *testing.T, root, file string) (found []*shellBlock) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var (
		at     *shellBlock // inside a fence
		fenced bool
		indent string
		next   = &shellBlock{}
	)
	for i, line := range strings.Split(string(b), "\n") {
		fence := blockFence.FindStringSubmatch(line)
		switch {
		case fence != nil && fenced:
			if at != nil {
				found = append(found, at)
			}
			at, fenced, next = nil, false, &shellBlock{}
		case fence != nil:
			fenced, indent = true, fence[1]
			switch lang := fence[2]; {
			case lang == "":
			case lang == "sh", lang == "bash", lang == "shell", lang == "console":
				at = next
				at.file, at.line, at.console = file, i+1, lang == "console"
			}
			if fence[2] == "" {
				t.Errorf("%s:%d: the block has no language: use sh for commands to run, and text for other text", file, i+1)
			}
		case at != nil:
			at.text += strings.TrimPrefix(line, indent) + "\n"
		case !fenced:
			m := blockComment.FindStringSubmatch(line)
			switch {
			case m == nil:
				if strings.TrimSpace(line) != "" {
					next = &shellBlock{} // comments apply to the block that follows them directly
				}
			case m[1] == "not run":
				next.notRun = m[2]
			case m[1] == "needs":
				next.needs = m[2]
			case m[1] == "prints":
				next.prints = append(next.prints, regexp.MustCompile(m[2]))
			}
		}
	}
	return found
}

// script returns the commands of the block.
func (b *shellBlock) script() string {
	if !b.console {
		return b.text
	}
	var s strings.Builder
	for line := range strings.Lines(b.text) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			s.WriteString(command)
		}
	}
	return s.String()
}

// expectedOutput returns the lines of a console block that are output.
func (b *shellBlock) expectedOutput() (lines []string) {
	for line := range strings.Lines(b.text) {
		if b.console && !strings.HasPrefix(line, "$ ") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

// newScratchDir returns a new directory with a name short enough for a URI, unlike t.TempDir.
func newScratchDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "verbena-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newCheckout returns a writable directory that resembles the repository.
func newCheckout(t *testing.T, root string) string {
	t.Helper()
	dir := newScratchDir(t)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == ".git" || e.Name() == "bin" {
			continue
		}
		if err := os.Symlink(filepath.Join(root, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(verbenaBinary(t), filepath.Join(dir, "bin", "verbena")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// goEnv returns the settings of Go that depend on HOME.
func goEnv(t *testing.T) (env []string) {
	t.Helper()
	names := []string{"GOCACHE", "GOMODCACHE", "GOPATH"}
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		env = append(env, names[i]+"="+value)
	}
	return env
}

// blockTimeout limits the time of a recipe. On a busy machine a recipe that builds a program takes longer than a
// minute.
const blockTimeout = 3 * time.Minute

// run runs the recipe in a new shell that exits at the first failure, with a temporary home directory. run uses a
// network namespace if the test may create one.
func (b *shellBlock) run(t *testing.T, root string, goEnv []string) {
	dir := newCheckout(t, root)
	home := newScratchDir(t)
	run := filepath.Join(home, "run")
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	env := append(append(os.Environ(), goEnv...), "CGO_ENABLED=0",
		"GOFLAGS=-trimpath", // without this setting each directory needs a separate build
		"HOME="+home, "TMPDIR="+home, "XDG_RUNTIME_DIR="+run, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	script := b.script()
	if b.needs == "a service" {
		script = "verbena serve --daemon\n" + script
	}
	argv := []string{"bash", "-e", "-s"}
	if os.Getuid() == 0 {
		argv = []string{"unshare", "--net", "bash", "-c", "ip link set lo up && exec bash -e -s"}
	}
	var out bytes.Buffer
	c := exec.Command(argv[0], argv[1:]...)
	c.Dir, c.Env = dir, env
	c.Stdin = strings.NewReader(script)
	c.Stdout, c.Stderr = &out, &out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.WaitDelay = 5 * time.Second // processes that the recipe leaves running keep its output open
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(blockTimeout, func() { syscall.Kill(-c.Process.Pid, syscall.SIGTERM) })
	err := c.Wait()
	late := !timer.Stop()
	text := out.String()
	t.Logf("%s\n--- output\n%s", script, lastLines(text, 60)) // errors follow the output
	if isGroupAlive(c.Process.Pid) {
		t.Errorf("recipe: left processes running:\n%s", groupMembers(c.Process.Pid))
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	b.stopServices(t, run)
	switch {
	case late:
		t.Errorf("recipe: did not end in %v", blockTimeout)
	case err != nil:
		t.Error(err)
	}
	for _, p := range b.prints {
		if !p.MatchString(text) {
			t.Errorf("output: got no match for %q", p)
		}
	}
	for _, want := range b.expectedOutput() {
		if !strings.Contains(normaliseOutput(text), normaliseOutput(want)+"\n") {
			t.Errorf("output: got no line %q", want)
		}
	}
}

var (
	guid   = regexp.MustCompile(`\b[0-9a-f]{16}\b`)
	spaces = regexp.MustCompile(`[ \t]+`)
)

// normaliseOutput returns output without machine-dependent parts, and with single spaces for tabs and runs of spaces.
func normaliseOutput(s string) string {
	return spaces.ReplaceAllString(guid.ReplaceAllString(s, "GUID"), " ")
}

// groupMembers lists the processes of a process group with their states.
func groupMembers(pgid int) string {
	list, err := exec.Command("ps", "-eo", "pgid,pid,stat,wchan:20,args").Output()
	if err != nil {
		return err.Error()
	}
	var members strings.Builder
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(strings.TrimSpace(line), fmt.Sprint(pgid, " ")) {
			members.WriteString(line)
		}
	}
	return members.String()
}

// isGroupAlive reports whether a process of a process group still runs after a short wait.
func isGroupAlive(pgid int) bool {
	began := time.Now()
	alive := true
	testutil.PollUntil(func() bool {
		alive = syscall.Kill(-pgid, 0) == nil
		return !alive || time.Since(began) > 5*time.Second
	})
	return alive
}

// stopServices ends the services that a recipe leaves running. A recipe need not end services that were started on
// demand.
func (b *shellBlock) stopServices(t *testing.T, run string) {
	sockets, err := filepath.Glob(filepath.Join(run, "verbena", "*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sockets {
		c, err := ctl.Dial(ctl.Location{Socket: s})
		if err != nil {
			continue // the service has ended meanwhile
		}
		r, err := c.Do(&ctl.Request{Op: ctl.OpInfo})
		if err == nil && !r.Info.OnDemand && b.needs != "a service" {
			t.Error("recipe: left a service of `verbena serve` running")
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		c.Close()
	}
}

// TestShellBlocks runs every shell block of README.md, docs/*.md and docs/results/*.md without changes. RECIPES=N
// runs each block N times while a loop keeps a processor busy.
func TestShellBlocks(t *testing.T) {
	t.Parallel()
	needProgram(t, "gcc make libibverbs-dev ibverbs-utils rdmacm-utils iproute2 perftest tshark libnbd-bin", "gcc", "make",
		"ibv_rc_pingpong", "rping", "rdma", "ib_send_bw", "tshark", "nbdcopy")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := findShellBlocks(t, root, "README.md")
	for _, dir := range []string{"docs", "docs/results"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			all = append(all, findShellBlocks(t, root, filepath.Join(dir, filepath.Base(f)))...)
		}
	}
	times := 1
	if s := os.Getenv("RECIPES"); s != "" {
		if times, err = strconv.Atoi(s); err != nil || times < 1 {
			t.Fatalf("RECIPES=%s is not a number of at least 1", s)
		}
		busy := exec.Command("timeout", "3600", "sh", "-c", `while :; do :; done`) // the loop ends even if the test is killed
		busy.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			syscall.Kill(-busy.Process.Pid, syscall.SIGKILL)
			busy.Wait()
		})
	}
	env, ran := goEnv(t), 0
	for i := range times {
		for _, b := range all {
			if b.notRun != "" {
				if i == 0 {
					t.Logf("%s: not run: %s", b.name(), b.notRun)
				}
				continue
			}
			ran++
			t.Run(b.name(), func(t *testing.T) { b.run(t, root, env) })
		}
	}
	if ran < 10*times {
		t.Errorf("blocks: ran %d, want at least %d", ran, 10*times)
	}
}
