package release

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// releaseVersion is the version of the recipes and of the release made for the tests.
const releaseVersion = "0.1.0"

// TestBuildIsReproducible tests that two builds of a commit are identical in every byte, in different directories, time
// zones and locales.
func TestBuildIsReproducible(t *testing.T) {
	skipIfUnable(t)
	if os.Getenv("RELEASE_DIST") != "" {
		t.Skip("RELEASE_DIST names existing artefacts")
	}
	first := releaseDir(t)
	dir := t.TempDir()
	checkout := filepath.Join(dir, "a", "longer", "path")
	// The second build uses the same tree: the files tracked by git, with uncommitted changes.
	script := `mkdir -p "$1" && cd ` + repoRoot + ` && git ls-files -z --cached --others --exclude-standard |
		while IFS= read -r -d '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done | tar -c --null -T - | tar -x -C "$1"`
	if out, err := exec.Command("bash", "-c", script, "sh", checkout).CombinedOutput(); err != nil {
		t.Fatalf("copy the tree: got %v, want success:\n%s", err, out)
	}
	t.Setenv("TZ", "Asia/Tokyo")
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("HOSTNAME", "another")
	second := filepath.Join(dir, "dist")
	if err := makeRelease(checkout, second); err != nil {
		t.Fatal(err)
	}
	names := func(dir string) (all []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	if a, b := names(first), names(second); !slices.Equal(a, b) || len(a) < 10 {
		t.Errorf("two builds: got the files %v and %v, want equal names", a, b)
	}
	for _, name := range names(first) {
		a, err := os.ReadFile(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, name))
		if err != nil {
			t.Fatal(err)
		}
		if sha256.Sum256(a) != sha256.Sum256(b) {
			t.Errorf("%s: got different bytes in two builds, want equal bytes", name)
		}
	}
}

// TestReleaseContents tests that the checksums are correct, that the binaries are static and print their version, and
// that the list of modules matches go.mod.
func TestReleaseContents(t *testing.T) {
	skipIfUnable(t)
	dir := releaseDir(t)
	c := exec.Command("sha256sum", "-c", "SHA256SUMS")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") < 9 {
		t.Errorf("sha256sum: got %v, want success:\n%s", err, out)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		to := t.TempDir()
		archive := fmt.Sprintf("%s/verbena-%s-linux-%s.tar.gz", dir, releaseVersion, arch)
		if out, err := exec.Command("tar", "-xzf", archive, "--strip-components=1", "-C", to).CombinedOutput(); err != nil {
			t.Fatalf("tar: got %v, want success:\n%s", err, out)
		}
		for _, name := range []string{"verbena", "LICENSE", "NOTICE", "README.md", "SECURITY.md", "completions/verbena.bash",
			"completions/_verbena",
			"completions/verbena.fish", "man/man1/verbena.1", "man/man1/verbena-run.1", "systemd/verbena.service"} {
			if info, err := os.Stat(filepath.Join(to, name)); err != nil || info.Size() == 0 {
				t.Errorf("%s: file %s: got error %v or no content, want a file", arch, name, err)
			}
		}
		out, err := exec.Command("go", "version", "-m", filepath.Join(to, "verbena")).CombinedOutput()
		if err != nil {
			t.Fatalf("strings: got %v, want success:\n%s", err, out)
		}
		expectMatches(t, string(out), "CGO_ENABLED=0", "GOARCH="+arch, `-trimpath=true`)
		if here, _ := filepath.Abs(repoRoot); strings.Contains(string(out), here) {
			t.Errorf("%s: binary: got the build directory in it, want none:\n%s", arch, out)
		}
		var bom struct {
			BomFormat  string
			Components []struct{ Name, Version string }
			Metadata   struct {
				Component struct{ Name, Version string }
			}
		}
		b, err := os.ReadFile(fmt.Sprintf("%s/verbena-%s-linux-%s.cdx.json", dir, releaseVersion, arch))
		if err == nil {
			err = json.Unmarshal(b, &bom)
		}
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range bom.Components {
			names = append(names, c.Name)
		}
		for _, want := range []string{"github.com/alecthomas/kong", "golang.org/x/sys", "std"} {
			if !slices.Contains(names, want) {
				t.Errorf("list of modules: got no %s, want it: %v", want, names)
			}
		}
		if bom.BomFormat != "CycloneDX" || bom.Metadata.Component.Version != "v"+releaseVersion {
			t.Errorf("metadata of the list of modules: got %+v, want CycloneDX and the version", bom.Metadata)
		}
		if arch == goArch() {
			out, err := exec.Command(filepath.Join(to, "verbena"), "version").CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "verbena v"+releaseVersion+" (") {
				t.Errorf("verbena version: got error %v and %q, want the version", err, out)
			}
		}
	}
}

func goArch() string {
	out, _ := exec.Command("go", "env", "GOARCH").Output()
	return strings.TrimSpace(string(out))
}

// TestPackageInstallsOnDebian tests that the package installs on a bare Debian. Programs run in it as root and as
// another user, and also as in a Docker container.
func TestPackageInstallsOnDebian(t *testing.T) {
	for name, suite := range debianSuites {
		t.Run(name, func(t *testing.T) {
			skipIfUnable(t)
			b := newInstalledSandbox(t, suite)
			expectMatches(t, b.mustRun(t, "verbena", "version"), `^verbena v`+releaseVersion)
			expectMatches(t, b.mustRun(t, "sh", "-c",
				"! command -v go python3; dpkg -s verbena; ls /usr/share/bash-completion/completions/verbena /usr/lib/systemd/system/verbena.service"),
				"^Status: install ok installed", "^Version: "+releaseVersion)
			for kind, flags := range sandboxKinds {
				t.Run(kind, func(t *testing.T) {
					in := b.withFlags(flags...)
					status := in.mustRun(t, "grep", "-E", "^(Seccomp|Uid):", "/proc/self/status")
					if strings.Contains(kind, "docker") {
						expectMatches(t, status, `^Seccomp:\s2`)
						expectMatches(t, in.mustFail(t, "unshare", "--user", "true"), "Operation not permitted")
					} else {
						expectMatches(t, status, `^Seccomp:\s0`)
					}
					// The recipe runs in a separate shell, because the first process in a container is also another
					// program.
					expectMatches(t, in.mustRun(t, "bash", "-e", "-c", firstMinuteRecipe(t)+"\nwait\n"), "8192000 bytes in",
						"1000 iters in")
					out := in.mustRun(t, "verbena", "run", "--", "dup")
					expectMatches(t, out, "^dup, alloc_pd: ok", "^dup3, alloc_pd: ok", "^F_DUPFD_CLOEXEC, alloc_pd: ok",
						"^alloc_pd after close: ok")
					if strings.Contains(kind, "docker") { // without it, the profile would not be Docker's profile
						expectMatches(t, out, "^pidfd_getfd here: operation not permitted")
					} else {
						expectMatches(t, out, "^pidfd_getfd here: <nil>")
					}
				})
			}
			b.mustRun(t, "sh", "-c",
				"apt-get purge -y -q verbena && ! command -v verbena && ! find /usr /etc /var/lib/systemd -name '*verbena*' ! -path '*/dpkg/*' | grep .")
		})
	}
}

// TestRPMHasSameFiles tests the package for Fedora and related distributions, which contains the same files. systemd
// creates the group of the unit.
func TestRPMHasSameFiles(t *testing.T) {
	skipIfUnable(t)
	rpm, err := exec.LookPath("rpm")
	if err != nil {
		t.Skip("needs rpm")
	}
	out, err := exec.Command(rpm, "-qpl", filepath.Join(releaseDir(t),
		"verbena-"+releaseVersion+"-1.x86_64.rpm")).CombinedOutput()
	if err != nil {
		t.Fatalf("rpm: got %v, want success:\n%s", err, out)
	}
	expectMatches(t, string(out), "^/usr/bin/verbena$", "^/usr/share/licenses/verbena/LICENSE$",
		"^/usr/share/man/man1/verbena-run.1.gz$",
		"^/usr/share/zsh/site-functions/_verbena$", "^/usr/lib/systemd/system/verbena.service$",
		"^/usr/lib/sysusers.d/verbena.conf$")
}

// TestImageRunsProgram tests that `docker run IMAGE PROGRAM` runs the program with devices.
func TestImageRunsProgram(t *testing.T) {
	skipIfUnable(t)
	dir, config := unpackImage(t)
	if config.Architecture != goArch() {
		t.Errorf("architecture: got %s, want that of this machine", config.Architecture)
	}
	b := newSandbox(t, dir).withFlags("-docker", "-bind", toolPath(t, "dup")+":/usr/local/bin/dup")
	run := func(args ...string) []string { return append(slices.Clone(config.Config.Entrypoint), args...) }
	for _, flags := range [][]string{nil, {"-user", nobodyUID}} {
		in := b.withFlags(flags...)
		expectMatches(t, in.mustRun(t, run(config.Config.Cmd...)...), `hca_id:\s+rxe0`, `state:\s+PORT_ACTIVE`)
		expectMatches(t, in.mustRun(t, run("verbena", "version")...), "^verbena v"+releaseVersion)
		expectMatches(t, in.mustRun(t, run("dup")...), "^dup, alloc_pd: ok")
		expectMatches(t, in.mustRun(t, run("--trace", "--", "ibv_devinfo", "-l")...), "1 HCA found", "newfstatat")
		// the whole recipe already runs under one `run`
		minute := strings.ReplaceAll(firstMinuteRecipe(t), "verbena run -- ", "")
		expectMatches(t, in.mustRun(t, run("bash", "-e", "-c", minute+"\nwait\n")...), "8192000 bytes in")
		c := in.command(t, run("sh", "-c", "exit 7")...)
		if err := c.Run(); c.ProcessState.ExitCode() != 7 {
			t.Errorf("exit code: got %v, want 7", err)
		}
	}
	// `docker stop` sends SIGTERM to the first process, which passes the signal to the program.
	c := b.command(t, run("sh", "-c", "trap 'echo stopped; exit 0' TERM; echo begun; sleep 60 & wait")...)
	var out lockedBuffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, func() bool { return strings.Contains(out.String(), "begun") }, &out)
	var children []byte
	for tid := range threadIDs(c.Process.Pid) { // the thread that started the program
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.Process.Pid, tid)); err == nil && len(b) > 0 {
			children = b
		}
	}
	first, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatalf("children: got %q and error %v, want the program", children, err)
	}
	if err := syscall.Kill(first, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil || !strings.Contains(out.String(), "stopped") {
		t.Errorf("end after SIGTERM: got %v, want success and stopped:\n%s", err, out.String())
	}
}

// threadIDs returns the thread IDs of a process.
func threadIDs(pid int) map[int]bool {
	all := map[int]bool{}
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			all[n] = true
		}
	}
	return all
}

// awaitCondition waits until a condition is true.
func awaitCondition(t *testing.T, condition func() bool, log *lockedBuffer) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("condition: got false until the timeout, want true:\n%s", log)
		}
	}
}
