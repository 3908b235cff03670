package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// imagePackages lists the packages that the image contains in addition to verbena, for programs and users.
const imagePackages = "ibverbs-providers,ibverbs-utils,librdmacm1,rdmacm-utils,libibumad3,iproute2"

// buildImage builds the image for this machine's architecture in the format of `docker save`. The layers of the image
// are Debian, rdma-core and verbena.
func (r *releaseBuilder) buildImage(common []archiveFile) error {
	base, err := r.buildDebianRoot("base", "")
	if err != nil {
		return err
	}
	full, err := r.buildDebianRoot("full", imagePackages)
	if err != nil {
		return err
	}
	rdma := filepath.Join(r.work, "rdma.tar")
	if err := buildLayerDiff(base, full, rdma); err != nil {
		return err
	}
	own, err := r.buildOwnLayer(common)
	if err != nil {
		return err
	}
	config := v1.Config{
		Entrypoint: []string{"/usr/bin/verbena-entrypoint"},
		Cmd:        []string{"ibv_devinfo"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":     "verbena",
			"org.opencontainers.image.version":   r.version,
			"org.opencontainers.image.source":    r.project["REPOSITORY"],
			"org.opencontainers.image.licenses":  "Apache-2.0",
			"org.opencontainers.image.base.name": "debian:" + r.project["IMAGE_SUITE"],
		},
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH,
		Created: v1.Time{Time: r.time}, Config: config,
		RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return err
	}
	for _, l := range []struct{ file, by string }{{base, "debian"}, {rdma, "rdma-core"}, {own, "verbena"}} {
		layer, err := tarball.LayerFromFile(l.file)
		if err != nil {
			return err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer,
			History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: l.by}}); err != nil {
			return err
		}
		size, err := layer.Size()
		if err != nil {
			return err
		}
		fmt.Printf("%10d   layer %s\n", size, l.by)
	}
	tag, err := name.NewTag(r.project["IMAGE"]+":"+r.version, name.WeakValidation)
	if err != nil {
		// OWNER is not a valid user name in a registry, because registries allow only lower-case letters.
		if tag, err = name.NewTag(strings.ToLower(r.project["IMAGE"]) + ":" + r.version); err != nil {
			return err
		}
	}
	file := fmt.Sprintf("verbena-%s-image-%s.tar", r.version, runtime.GOARCH)
	if err := tarball.WriteToFile(filepath.Join(r.out, file), tag, img); err != nil {
		return err
	}
	return r.addArtefact(file)
}

// buildDebianRoot builds the archive of a Debian root file system with packages. buildDebianRoot omits documentation
// except licences.
func (r *releaseBuilder) buildDebianRoot(name, packages string) (string, error) {
	file := filepath.Join(r.work, name+".tar")
	args := []string{"--quiet", "--variant=minbase", "--format=tar"}
	for _, p := range []string{"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
		"path-exclude=/usr/share/man/*",
		"path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/info/*"} {
		args = append(args, "--dpkgopt="+p)
	}
	if packages != "" {
		args = append(args, "--include="+packages)
	}
	args = append(args, r.project["IMAGE_SUITE"], file)
	if mirror := os.Getenv("DEBIAN_MIRROR"); mirror != "" {
		args = append(args, mirror)
	}
	c := exec.Command("mmdebstrap", args...)
	c.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time.Unix()))
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mmdebstrap: %w\n%s", err, out)
	}
	return file, nil
}

// buildOwnLayer builds the archive of verbena's own files, at the paths that its package uses.
func (r *releaseBuilder) buildOwnLayer(common []archiveFile) (string, error) {
	binary, err := os.ReadFile(r.binaryPath(runtime.GOARCH))
	if err != nil {
		return "", err
	}
	entry, err := os.ReadFile(filepath.Join(r.root, "packaging/entrypoint"))
	if err != nil {
		return "", err
	}
	own := []archiveFile{{"usr/bin/verbena", 0o755, binary}, {"usr/bin/verbena-entrypoint", 0o755, entry}}
	for _, f := range common {
		if f.name == "LICENSE" || f.name == "NOTICE" || f.name == "completions/verbena.bash" {
			own = append(own, archiveFile{strings.TrimPrefix(packagePath("deb", f.name), "/"), f.mode, f.content})
		}
	}
	slices.SortFunc(own, func(a, b archiveFile) int { return strings.Compare(a.name, b.name) })
	var b bytes.Buffer
	if err := r.writeTar(&b, own); err != nil {
		return "", err
	}
	to := filepath.Join(r.work, "own.tar")
	return to, os.WriteFile(to, b.Bytes(), 0o644)
}

// buildLayerDiff builds the archive of the files of full that base lacks, with whiteouts for the files of base that
// full lacks.
func buildLayerDiff(base, full, to string) error {
	old, err := indexArchive(base)
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	out := tar.NewWriter(f)
	dirs := map[string]*tar.Header{}     // directories that the layer does not contain yet
	parents := func(name string) error { // writes the parent directories of name
		for i := range len(name) - 1 { // the name of a directory ends in a slash
			if d := name[:i+1]; name[i] == '/' && dirs[d] != nil {
				if err := out.WriteHeader(dirs[d]); err != nil {
					return err
				}
				delete(dirs, d)
			}
		}
		return nil
	}
	if err := forEachArchiveFile(full, func(h *tar.Header, body io.Reader) error {
		content, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		before, there := old[h.Name]
		delete(old, h.Name)
		if h.Typeflag == tar.TypeDir && there {
			dirs[h.Name] = h
			return nil
		}
		if there && before == fileFingerprint(h, content) {
			return nil
		}
		if err := parents(h.Name); err != nil {
			return err
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err = out.Write(content)
		return err
	}); err != nil {
		return err
	}
	for _, gone := range slices.Sorted(maps.Keys(old)) {
		dir, base := path.Split(strings.TrimSuffix(gone, "/"))
		if _, within := old[dir]; within {
			continue // the layer removes its directory, too
		}
		if err := parents(gone); err != nil {
			return err
		}
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + ".wh." + base, Mode: 0o644}); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return f.Close()
}

// indexArchive returns the fingerprints of the files in an archive.
func indexArchive(file string) (map[string]string, error) {
	found := map[string]string{}
	return found, forEachArchiveFile(file, func(h *tar.Header, body io.Reader) error {
		content, err := io.ReadAll(body)
		found[h.Name] = fileFingerprint(h, content)
		return err
	})
}

// fileFingerprint returns a string that is equal for two files if a layer need not distinguish them.
func fileFingerprint(h *tar.Header, content []byte) string {
	return fmt.Sprintf("%c %o %d:%d %q %d:%d %x", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, h.Devmajor, h.Devminor,
		sha256.Sum256(content))
}

// forEachArchiveFile calls f for each file in an archive.
func forEachArchiveFile(file string, f func(h *tar.Header, body io.Reader) error) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	for t := tar.NewReader(in); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := f(h, t); err != nil {
			return fmt.Errorf("%s: %s: %w", file, h.Name, err)
		}
	}
}
