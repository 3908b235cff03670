// Command release builds the artefacts of a release in a directory. For linux/amd64 and linux/arm64 these are an
// archive, packages for Debian and Fedora, and a list of the modules in the binary (CycloneDX). The command also
// builds a container image, a statement of provenance (in-toto, SLSA), and the checksums of all artefacts.
//
//	cd packaging && go run ./release -version 1.2.3
//
// The same commit and the same version of Go produce the same bytes, in any directory and at any time. The image
// also depends on the current packages of Debian. The times in the artefacts are the time of the commit, or
// SOURCE_DATE_EPOCH. The commit is determined by git, or by SOURCE_REVISION. BUILDER_ID overrides the builder of
// project.env in the provenance.
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
	r := releaseBuilder{}
	flag.StringVar(&r.version, "version", "", "release this version, such as 1.2.3 or 1.3.0-rc1")
	flag.StringVar(&r.root, "root", "..", "release this checkout")
	flag.StringVar(&r.out, "out", "../dist", "write the artefacts to this directory; other files in it are kept")
	image := flag.Bool("image", true, "build the image, too; needs mmdebstrap")
	dirty := flag.Bool("dirty", false, "allow a checkout with uncommitted changes")
	flag.Parse()
	if err := r.buildRelease(*image, *dirty); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// releaseBuilder holds the parameters of a release.
type releaseBuilder struct {
	version   string // version without "v"
	root, out string // absolute paths of the repository and the output
	work      string // a temporary directory
	time      time.Time
	revision  string            // full name of the commit
	project   map[string]string // values of project.env
	artefacts []string          // names of the artefacts in out
}

// architectures maps the GOARCH names of the architectures to their names in packages. The image is built only for
// this machine's architecture.
var architectures = []string{"amd64", "arm64"}

var versionPattern = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.]+)?$`)

var revisionPattern = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

func (r *releaseBuilder) buildRelease(image, dirty bool) (err error) {
	if !versionPattern.MatchString(r.version) {
		return fmt.Errorf("version %q is not MAJOR.MINOR.PATCH; use for example make release VERSION=1.2.3", r.version)
	}
	if r.root, err = filepath.Abs(r.root); err == nil {
		r.out, err = filepath.Abs(r.out)
	}
	if err != nil {
		return err
	}
	if image {
		if _, err := exec.LookPath("mmdebstrap"); err != nil {
			return errors.New("the image needs mmdebstrap: apt-get install mmdebstrap, or omit the image by IMAGE=no")
		}
	}
	if err := r.readCommit(dirty); err != nil {
		return err
	}
	if r.project, err = readEnvFile(filepath.Join(r.root, "packaging/project.env")); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "verbena-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	common, err := r.collectCommonFiles()
	if err != nil {
		return err
	}
	for _, arch := range architectures {
		if err := r.buildArtefacts(arch, common); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	if image {
		if err := r.buildImage(common); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	if err := r.writeProvenance(image, dirty); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	return r.writeChecksums()
}

// readCommit determines the commit and the time of the release, and checks that the tree has no uncommitted
// changes.
func (r *releaseBuilder) readCommit(dirty bool) error {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", r.root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = git("log", "-1", "--format=%ct"); err != nil {
			return fmt.Errorf("%s is not a git checkout: set SOURCE_DATE_EPOCH to the time of the release", r.root)
		}
	}
	if r.revision = os.Getenv("SOURCE_REVISION"); r.revision == "" {
		var err error
		if r.revision, err = git("rev-parse", "HEAD"); err != nil {
			return fmt.Errorf("%s is not a git checkout: set SOURCE_REVISION to the commit of the release", r.root)
		}
	}
	if !revisionPattern.MatchString(r.revision) {
		return fmt.Errorf("SOURCE_REVISION=%s is not a commit of 40 hexadecimal digits", r.revision)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH=%s is not a number of seconds", text)
	}
	r.time = time.Unix(seconds, 0).UTC()
	if changes, err := git("status", "--porcelain"); err == nil && changes != "" && !dirty {
		return fmt.Errorf("uncommitted changes: commit or stash them, or release them with cd packaging && go run ./release -dirty ...:\n%s", changes)
	}
	return nil
}

// readEnvFile reads a file of NAME=VALUE lines in shell syntax. readEnvFile supports only values in double quotes.
func readEnvFile(file string) (map[string]string, error) {
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
			return nil, fmt.Errorf("%s: line %q is not NAME=VALUE", file, line)
		}
		values[name] = strings.Trim(value, `"`)
	}
	return values, nil
}

// buildArtefacts builds the artefacts of an architecture.
func (r *releaseBuilder) buildArtefacts(arch string, common []archiveFile) error {
	binary, err := r.buildBinary(arch)
	if err != nil {
		return err
	}
	files := append([]archiveFile{{"verbena", 0o755, binary}}, common...)
	if err := r.writeArchive(fmt.Sprintf("verbena-%s-linux-%s.tar.gz", r.version, arch), files); err != nil {
		return err
	}
	if err := r.writeBOM(fmt.Sprintf("verbena-%s-linux-%s.cdx.json", r.version, arch), arch); err != nil {
		return fmt.Errorf("write the list of modules: %w", err)
	}
	return r.buildPackages(arch, files)
}

// writeArtefact writes an artefact.
func (r *releaseBuilder) writeArtefact(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), content, 0o644); err != nil {
		return err
	}
	return r.addArtefact(name)
}

// addArtefact records an artefact that was written.
func (r *releaseBuilder) addArtefact(name string) error {
	info, err := os.Stat(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	r.artefacts = append(r.artefacts, name)
	fmt.Printf("%10d %s\n", info.Size(), name)
	return nil
}
