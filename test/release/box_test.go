package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const repoRoot = "../.."

// nobodyUID is a user without files and rights.
const nobodyUID = "65534"

// debianSuites lists the releases of Debian for the tests of the artefacts.
var debianSuites = map[string]string{"Debian12": "bookworm", "Debian13": "trixie"}

// skipIfUnable skips a test that cannot run on this machine or as this user.
func skipIfUnable(t *testing.T) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("with -short, the tests only read the recipes")
	case os.Getuid() != 0:
		t.Skip("needs root for chroots and mounts")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("needs mmdebstrap: apt-get install mmdebstrap")
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repoRoot, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// tempDir returns a directory for all tests.
var tempDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "verbena-release-test-") })

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := tempDir(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// toolsDir returns the directory of this module's programs, built without a C library.
var toolsDir = sync.OnceValues(func() (string, error) {
	dir, err := tempDir()
	if err != nil {
		return "", err
	}
	c := exec.Command("go", "build", "-o", dir, "./contain", "./dup")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})

func toolPath(t *testing.T, name string) string {
	t.Helper()
	dir, err := toolsDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// commitTime returns the time of this tree's commit. The releases made by the tests have the same time.
var commitTime = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("git", "-C", repoRoot, "log", "-1", "--format=%ct").Output()
	return strings.TrimSpace(string(out)), err
})

// commitRevision returns the commit of this tree.
var commitRevision = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("git", "-C", repoRoot, "rev-parse", "HEAD").Output()
	return strings.TrimSpace(string(out)), err
})

// makeRelease builds a release of a checkout.
func makeRelease(checkout, out string) error {
	seconds, err := commitTime()
	if err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	commit, err := commitRevision()
	if err != nil {
		return fmt.Errorf("git rev-parse: %w", err)
	}
	c := exec.Command("go", "run", "./release", "-dirty", "-version", releaseVersion, "-root", checkout, "-out", out)
	c.Dir = filepath.Join(checkout, "packaging")
	c.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+seconds, "SOURCE_REVISION="+commit)
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("make a release: %w\n%s", err, text)
	}
	return nil
}

// makeReleaseOnce returns the directory of a release of this tree.
var makeReleaseOnce = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("RELEASE_DIST"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := tempDir()
	if err != nil {
		return "", err
	}
	checkout, err := filepath.Abs(repoRoot)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "dist")
	return dir, makeRelease(checkout, dir)
})

func releaseDir(t *testing.T) string {
	t.Helper()
	dir, err := makeReleaseOnce()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// debianRoot returns the root directory of a bare Debian. A cache holds the packages that the tests install.
func debianRoot(t *testing.T, suite string) string {
	t.Helper()
	cache := os.Getenv("RELEASE_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(user, "verbena", "release")
	}
	dir := filepath.Join(cache, suite)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	part := dir + ".part"
	os.RemoveAll(part)
	args := []string{"--quiet", "--variant=minbase", "--skip=cleanup/apt", "--format=directory",
		`--customize-hook=chroot "$1" apt-get install -y -q --download-only --no-install-recommends ibverbs-utils ibverbs-providers curl ca-certificates`,
		suite, part}
	if mirror := os.Getenv("DEBIAN_MIRROR"); mirror != "" {
		args = append(args, mirror)
	}
	if out, err := exec.Command("mmdebstrap", args...).CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: got %v, want success:\n%s", err, out)
	}
	if err := os.Rename(part, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sandbox is a root directory for programs. Changes to its files are temporary.
type sandbox struct {
	dir  string
	args []string // arguments of contain for every program
}

// newSandbox returns a box with the files of a directory.
func newSandbox(t *testing.T, lower string) *sandbox {
	t.Helper()
	dir, err := os.MkdirTemp("", "verbena-box-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	merged := filepath.Join(dir, "merged")
	for _, name := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, dir, dir)
	if err := syscall.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatalf("mount an overlay: got %v, want success", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(merged, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: got %v, want success", merged, err)
		}
	})
	return &sandbox{dir: merged}
}

// withFlags returns the same box with additional flags of contain.
func (b *sandbox) withFlags(flags ...string) *sandbox {
	return &sandbox{dir: b.dir, args: append(append([]string{}, b.args...), flags...)}
}

// newBareSandbox returns a box that contains only Debian. /release contains the artefacts.
func newBareSandbox(t *testing.T, suite string) *sandbox {
	return newSandbox(t, debianRoot(t, suite)).withFlags("-bind", releaseDir(t)+":/release", "-bind", toolPath(t,
		"dup")+":/usr/local/bin/dup")
}

// newInstalledSandbox returns a bare box in which apt-get has installed the package.
func newInstalledSandbox(t *testing.T, suite string) *sandbox {
	t.Helper()
	b := newBareSandbox(t, suite)
	b.mustRun(t, "sh", "-c",
		"apt-get install -y -q --no-install-recommends ibverbs-utils ibverbs-providers /release/verbena_"+releaseVersion+"_$(dpkg --print-architecture).deb")
	return b
}

// programTimeout limits the time of a program in a box.
const programTimeout = 2 * time.Minute

// command prepares a program to run in the box.
func (b *sandbox) command(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programTimeout)
	t.Cleanup(cancel)
	args := append([]string{"-root", b.dir}, b.args...)
	c := exec.CommandContext(ctx, toolPath(t, "contain"), append(append(args, "--"), argv...)...)
	c.WaitDelay = 5 * time.Second
	return c
}

// mustRun runs a program that must succeed, and returns its output.
func (b *sandbox) mustRun(t *testing.T, argv ...string) string {
	t.Helper()
	c := b.command(t, argv...)
	out, err := c.CombinedOutput()
	if err != nil {
		if len(out) > 4000 {
			out = out[len(out)-4000:]
		}
		t.Fatalf("%q: got %v, want success:\n%s", argv, err, out)
	}
	return string(out)
}

// expectMatches makes the test fail unless the text matches the expressions.
func expectMatches(t *testing.T, text string, expressions ...string) {
	t.Helper()
	for _, e := range expressions {
		if !regexp.MustCompile("(?m)" + e).MatchString(text) {
			t.Errorf("output: got no match for %q, want one:\n%s", e, text)
		}
	}
}

// sandboxKinds maps names to the ways of running a program in a box.
var sandboxKinds = map[string][]string{
	"root":          nil,
	"nobody":        {"-user", nobodyUID},
	"docker/root":   {"-docker"},
	"docker/nobody": {"-docker", "-user", nobodyUID},
}

var firstMinutePattern = regexp.MustCompile("(?s)## In one minute\n.*?```sh\n(.*?)```")

// firstMinuteRecipe returns the README's recipe for the first minute.
func firstMinuteRecipe(t *testing.T) string {
	t.Helper()
	m := firstMinutePattern.FindStringSubmatch(readFile(t, "README.md"))
	if m == nil {
		t.Fatal(`README.md: got no recipe below "In one minute", want one`)
	}
	return m[1]
}

// unpackImage unpacks the image made for this machine.
func unpackImage(t *testing.T) (dir string, config imageConfig) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(releaseDir(t), "*-image-*.tar"))
	if err != nil || len(found) != 1 {
		t.Fatalf("images: got %v and error %v, want one", found, err)
	}
	archive := t.TempDir()
	untar := func(file, to string) {
		t.Helper()
		if out, err := exec.Command("tar", "-xf", file, "-C", to, "--numeric-owner").CombinedOutput(); err != nil {
			t.Fatalf("tar: got %v, want success:\n%s", err, out)
		}
	}
	untar(found[0], archive)
	var manifest []struct {
		Config string
		Layers []string
	}
	parse := func(file string, v any) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(archive, file))
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	parse("manifest.json", &manifest)
	parse(manifest[0].Config, &config)
	dir = t.TempDir()
	for _, layer := range manifest[0].Layers {
		untar(filepath.Join(archive, layer), dir)
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if name, ok := strings.CutPrefix(d.Name(), ".wh."); ok {
				return errors.Join(os.Remove(path), os.RemoveAll(filepath.Join(filepath.Dir(path), name)))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, config
}

type imageConfig struct {
	Architecture string
	Config       struct{ Entrypoint, Cmd, Env []string }
}

// linkNetworks makes two network namespaces, joined by a bridge, with the addresses 10.50.0.1 and 10.50.0.2.
func linkNetworks(t *testing.T, names [2]string) {
	t.Helper()
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: got %v, want success:\n%s", strings.Join(args, " "), err, out)
		}
	}
	hub := names[0] + "-hub"
	for _, n := range []string{hub, names[0], names[1]} {
		ip("netns", "add", n)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", n).Run() })
		ip("-n", n, "link", "set", "lo", "up")
	}
	ip("-n", hub, "link", "add", "br0", "type", "bridge")
	ip("-n", hub, "link", "set", "br0", "up")
	for i, n := range names {
		port := fmt.Sprintf("port%d", i)
		ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", n)
		ip("-n", hub, "link", "set", port, "master", "br0", "up")
		ip("-n", n, "addr", "add", fmt.Sprintf("10.50.0.%d/24", i+1), "dev", "eth0")
		ip("-n", n, "link", "set", "eth0", "up")
	}
}

// lockedBuffer collects the output of a running program.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *lockedBuffer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *lockedBuffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
