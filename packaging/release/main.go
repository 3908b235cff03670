// Command release makes the artefacts of a release in a directory: for linux/amd64 and linux/arm64 an archive, packages for
// Debian and Fedora and a list of the modules in the binary (CycloneDX), an image for containers, a statement of provenance (in-toto, SLSA), and the
// checksums of all.
//
//	cd packaging && go run ./release -version 1.2.3
//
// The same commit and the same version of Go give the same bytes, in whatever directory and at whatever time; the image follows
// Debian's packages of the day, too. Times in the artefacts are the commit's, or SOURCE_DATE_EPOCH; the commit is git's, or SOURCE_REVISION.
// BUILDER_ID names the builder in the provenance, in place of project.env's.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	r := release{}
	flag.StringVar(&r.version, "version", "", "version, such as 1.2.3 or 1.3.0-rc1")
	flag.StringVar(&r.root, "root", "..", "checkout to release")
	flag.StringVar(&r.out, "out", "../dist", "directory for the artefacts; what is in it is left there")
	image := flag.Bool("image", true, "make the image, too; needs mmdebstrap")
	dirty := flag.Bool("dirty", false, "release a checkout with changes that are not committed")
	flag.Parse()
	if err := r.run(*image, *dirty); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is what is known of one.
type release struct {
	version   string // without "v"
	root, out string // absolute
	work      string // a temporary directory
	time      time.Time
	revision  string            // the commit
	project   map[string]string // project.env
	artefacts []string          // names of files in out
}

// architectures are GOARCH's names. The image is for this machine's alone.
var architectures = []string{"amd64", "arm64"}

var versionForm = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.]+)?$`)

var revisionForm = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

func (r *release) run(image, dirty bool) (err error) {
	if !versionForm.MatchString(r.version) {
		return fmt.Errorf("version %q: write MAJOR.MINOR.PATCH, such as make release VERSION=1.2.3", r.version)
	}
	if r.root, err = filepath.Abs(r.root); err == nil {
		r.out, err = filepath.Abs(r.out)
	}
	if err != nil {
		return err
	}
	if image {
		if _, err := exec.LookPath("mmdebstrap"); err != nil {
			return errors.New("the image needs mmdebstrap: apt-get install mmdebstrap, or leave the image out by IMAGE=no")
		}
	}
	if err := r.readCommit(dirty); err != nil {
		return err
	}
	if r.project, err = readEnv(filepath.Join(r.root, "packaging/project.env")); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "verbena-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	common, err := r.commonFiles()
	if err != nil {
		return err
	}
	for _, arch := range architectures {
		if err := r.artefactsFor(arch, common); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	if image {
		if err := r.image(common); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	if err := r.provenance(image, dirty); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	return r.checksums()
}

// readCommit finds the time of the release, and whether the tree is what is committed.
func (r *release) readCommit(dirty bool) error {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", r.root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = git("log", "-1", "--format=%ct"); err != nil {
			return fmt.Errorf("%s is no git checkout: set SOURCE_DATE_EPOCH to the time of the release", r.root)
		}
	}
	if r.revision = os.Getenv("SOURCE_REVISION"); r.revision == "" {
		var err error
		if r.revision, err = git("rev-parse", "HEAD"); err != nil {
			return fmt.Errorf("%s is no git checkout: set SOURCE_REVISION to the commit of the release", r.root)
		}
	}
	if !revisionForm.MatchString(r.revision) {
		return fmt.Errorf("SOURCE_REVISION=%s is not the name of a commit in 40 hexadecimal digits", r.revision)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH=%s is not a number of seconds", text)
	}
	r.time = time.Unix(seconds, 0).UTC()
	if changes, err := git("status", "--porcelain"); err == nil && changes != "" && !dirty {
		return fmt.Errorf("there are changes that are not committed; commit or stash them (cd packaging && go run ./release -dirty ... releases them all the same):\n%s", changes)
	}
	return nil
}

// readEnv reads a file of NAME=VALUE, as a shell does; only double quotes are known.
func readEnv(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("%s: %q is not NAME=VALUE", file, line)
		}
		values[name] = strings.Trim(value, `"`)
	}
	return values, nil
}

// artefactsFor makes the artefacts of an architecture.
func (r *release) artefactsFor(arch string, common []file) error {
	binary, err := r.build(arch)
	if err != nil {
		return err
	}
	files := append([]file{{"verbena", 0o755, binary}}, common...)
	if err := r.archive(fmt.Sprintf("verbena-%s-linux-%s.tar.gz", r.version, arch), files); err != nil {
		return err
	}
	if err := r.bom(fmt.Sprintf("verbena-%s-linux-%s.cdx.json", r.version, arch), arch); err != nil {
		return fmt.Errorf("list of modules: %w", err)
	}
	return r.packages(arch, files)
}

// write makes an artefact.
func (r *release) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), content, 0o644); err != nil {
		return err
	}
	return r.add(name)
}

// add notes an artefact that has been made.
func (r *release) add(name string) error {
	info, err := os.Stat(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	r.artefacts = append(r.artefacts, name)
	fmt.Printf("%10d %s\n", info.Size(), name)
	return nil
}
