package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// archiveFile is a file in an archive.
type archiveFile struct {
	name    string // path below the directory of the archive
	mode    fs.FileMode
	content []byte
}

// binaryPath returns the path of the binary for an architecture.
func (r *releaseBuilder) binaryPath(arch string) string {
	return filepath.Join(r.work, arch, "verbena")
}

// buildBinary returns the binary for an architecture. The binary does not depend on the directory, the environment or
// the machine.
func (r *releaseBuilder) buildBinary(arch string) ([]byte, error) {
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid= -X main.release=v"+r.version,
		"-o", r.binaryPath(arch), "./cmd/verbena")
	c.Dir = r.root
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=",
		"GOEXPERIMENT=",
		"GOWORK=off", "GODEBUG=", "GOFIPS140=off")
	c.Stderr = os.Stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("go build: %w", err)
	}
	return os.ReadFile(r.binaryPath(arch))
}

// collectCommonFiles returns the files for all architectures: documentation, the unit, completions and manual pages.
func (r *releaseBuilder) collectCommonFiles() (files []archiveFile, err error) {
	names := []string{"LICENSE", "packaging/NOTICE", "README.md", "CHANGELOG.md", "SECURITY.md"}
	for _, dir := range []string{"docs/", "docs/results/"} {
		pages, err := filepath.Glob(filepath.Join(r.root, dir, "*.md"))
		if err != nil {
			return nil, err
		}
		for _, p := range pages {
			names = append(names, dir+filepath.Base(p))
		}
	}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return nil, err
		}
		files = append(files, archiveFile{strings.TrimPrefix(name, "packaging/"), 0o644, b})
	}
	unit, err := os.ReadFile(filepath.Join(r.root, "packaging/verbena.service"))
	if err != nil {
		return nil, err
	}
	files = append(files, archiveFile{"systemd/verbena.service", 0o644, unit})
	if _, err := r.buildBinary(runtime.GOARCH); err != nil {
		return nil, err
	}
	self := func(args ...string) ([]byte, error) {
		c := exec.Command(r.binaryPath(runtime.GOARCH), args...)
		c.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time.Unix()))
		c.Stderr = os.Stderr
		b, err := c.Output()
		if err != nil {
			err = fmt.Errorf("verbena %s: %w", strings.Join(args, " "), err)
		}
		return b, err
	}
	for shell, name := range map[string]string{"bash": "verbena.bash", "zsh": "_verbena", "fish": "verbena.fish"} {
		b, err := self("completion", shell)
		if err != nil {
			return nil, err
		}
		files = append(files, archiveFile{"completions/" + name, 0o644, b})
	}
	man := filepath.Join(r.work, "man")
	if _, err := self("man-pages", man); err != nil {
		return nil, err
	}
	manuals, err := filepath.Glob(filepath.Join(man, "*.1"))
	if err != nil {
		return nil, err
	}
	for _, m := range manuals {
		b, err := os.ReadFile(m)
		if err != nil {
			return nil, err
		}
		files = append(files, archiveFile{"man/man1/" + filepath.Base(m), 0o644, b})
	}
	slices.SortFunc(files, func(a, b archiveFile) int { return strings.Compare(a.name, b.name) })
	return files, nil
}

// writeChecksums writes SHA256SUMS, the input of `sha256sum -c`.
func (r *releaseBuilder) writeChecksums() error {
	slices.Sort(r.artefacts)
	var b strings.Builder
	for _, name := range r.artefacts {
		content, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), name)
	}
	return r.writeArtefact("SHA256SUMS", []byte(b.String()))
}
