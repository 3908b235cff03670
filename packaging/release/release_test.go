package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestVersionPatternMatchesReleases(t *testing.T) {
	for text, want := range map[string]bool{"1.2.3": true, "0.1.0": true, "1.3.0-rc1": true, "": false, "v1.2.3": false,
		"1.2": false, "01.2.3": false,
		"1.2.3-": false, "1.2.3 ": false} {
		if got := versionPattern.MatchString(text); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	r := releaseBuilder{version: "1.2"}
	if err := r.buildRelease(false, true); err == nil || !strings.Contains(err.Error(), "make release VERSION=1.2.3") {
		t.Errorf("run with version 1.2: got %v, want an error with the remedy", err)
	}
}

func TestReadEnvParsesQuotedValues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("# words\nA=1\n\nB=\"two words\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readEnvFile(file)
	if want := map[string]string{"A": "1", "B": "two words"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("readEnvFile: got %v, %v, want %v", got, err, want)
	}
	if err := os.WriteFile(file, []byte("words\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readEnvFile(file); err == nil {
		t.Error("line without =: got success, want an error")
	}
	project, err := readEnvFile("../project.env")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"REPOSITORY", "IMAGE", "MAINTAINER", "IMAGE_SUITE", "BUILDER"} {
		if project[name] == "" {
			t.Errorf("project.env: got no %s", name)
		}
	}
}

// TestPackagePathsAreUnique checks that no two files of the archive have the same path in a package.
func TestPackagePathsAreUnique(t *testing.T) {
	names := []string{"verbena", "LICENSE", "NOTICE", "README.md", "docs/README.md", "docs/states.md",
		"docs/results/states.md", "systemd/verbena.service", "man/man1/verbena.1", "completions/verbena.bash",
		"completions/_verbena", "completions/verbena.fish"}
	for _, format := range []string{"deb", "rpm"} {
		seen := map[string]string{}
		for _, name := range names {
			to := packagePath(format, name)
			if !strings.HasPrefix(to, "/usr/") || seen[to] != "" {
				t.Errorf("%s: %s and %[4]q have the same path %[3]q", format, name, to, seen[to])
			}
			seen[to] = name
		}
	}
}

// archiveEntry is a file for a test archive. A name with a trailing "/" is a directory.
type archiveEntry struct{ name, content string }

func writeTestArchive(t *testing.T, entries ...archiveEntry) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644, Size: int64(len(e.content)),
			ModTime: time.Unix(1, 0)}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLayerDiffContainsChanges checks that a layer contains new and changed files, their directories, and whiteouts for
// removed files.
func TestLayerDiffContainsChanges(t *testing.T) {
	base := writeTestArchive(t, archiveEntry{"./", ""}, archiveEntry{"./etc/", ""}, archiveEntry{"./etc/same", "1"},
		archiveEntry{"./etc/changed", "1"},
		archiveEntry{"./etc/gone", "1"},
		archiveEntry{"./old/", ""}, archiveEntry{"./old/file", "1"}, archiveEntry{"./usr/", ""}, archiveEntry{"./usr/lib/",
			""})
	full := writeTestArchive(t, archiveEntry{"./", ""}, archiveEntry{"./etc/", ""}, archiveEntry{"./etc/same", "1"},
		archiveEntry{"./etc/changed", "2"},
		archiveEntry{"./usr/", ""}, archiveEntry{"./usr/lib/", ""}, archiveEntry{"./usr/lib/new/",
			""}, archiveEntry{"./usr/lib/new/file", "1"})
	to := filepath.Join(t.TempDir(), "layer.tar")
	if err := buildLayerDiff(base, full, to); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := forEachArchiveFile(to, func(h *tar.Header, body io.Reader) error {
		b, err := io.ReadAll(body)
		got = append(got, h.Name+string(b))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"./", "./etc/", "./etc/changed2", "./usr/", "./usr/lib/", "./usr/lib/new/", "./usr/lib/new/file1",
		"./etc/.wh.gone", "./.wh.old"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("difference: got %q\nwant %q", got, want)
	}
}

// TestTarIsReproducible checks that repeated archives are equal, and that root owns all files.
func TestTarIsReproducible(t *testing.T) {
	r := releaseBuilder{time: time.Unix(1000, 0)}
	files := []archiveFile{{"a/b/c", 0o755, []byte("1")}, {"a/d", 0o644, nil}}
	var one, two bytes.Buffer
	if err := r.writeTar(&one, files); err != nil {
		t.Fatal(err)
	}
	if err := r.writeTar(&two, files); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("two archives differ, %v", err)
	}
	var names []string
	for in := tar.NewReader(&one); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Uid != 0 || h.Uname != "" || h.ModTime.Unix() != 1000 {
			t.Errorf("%s: %+v", h.Name, h)
		}
	}
	if want := []string{"a/", "a/b/", "a/b/c", "a/d"}; !reflect.DeepEqual(names, want) {
		t.Errorf("files in the archive: got %q, want %q", names, want)
	}
}

// TestProvenanceListsArtefactsAndSource checks that the statement contains the digest of each artefact, the source, the
// tools and the parameters, and that repeated statements are equal.
func TestProvenanceListsArtefactsAndSource(t *testing.T) {
	t.Setenv("BUILDER_ID", "")
	project, err := readEnvFile("../project.env")
	if err != nil {
		t.Fatal(err)
	}
	revision := strings.Repeat("0123456789", 4)
	write := func() (string, map[string]any) {
		r := releaseBuilder{version: "1.2.3", root: "../..", out: t.TempDir(), project: project, revision: revision,
			time: time.Unix(1000, 0).UTC()}
		for _, name := range []string{"b.tar.gz", "a.deb"} {
			if err := r.writeArtefact(name, []byte(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.writeProvenance(true, false); err != nil {
			t.Fatal(err)
		}
		if err := r.writeChecksums(); err != nil {
			t.Fatal(err)
		}
		sums, err := os.ReadFile(filepath.Join(r.out, "SHA256SUMS"))
		if err != nil || !strings.Contains(string(sums), "  verbena-1.2.3.provenance.json\n") {
			t.Errorf("checksums: got %q, %v", sums, err)
		}
		b, err := os.ReadFile(filepath.Join(r.out, "verbena-1.2.3.provenance.json"))
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		return string(b), v
	}
	text, s := write()
	if again, _ := write(); again != text {
		t.Errorf("two statements differ:\n%s\n%s", text, again)
	}
	want := []any{
		map[string]any{"name": "a.deb", "digest": map[string]any{"sha256": fmt.Sprintf("%x",
			sha256.Sum256([]byte("a.deb")))}},
		map[string]any{"name": "b.tar.gz", "digest": map[string]any{"sha256": fmt.Sprintf("%x",
			sha256.Sum256([]byte("b.tar.gz")))}},
	}
	if s["_type"] != "https://in-toto.io/Statement/v1" || s["predicateType"] != "https://slsa.dev/provenance/v1" ||
		!reflect.DeepEqual(s["subject"], want) {
		t.Errorf("statement: got %v, want subjects %v", s, want)
	}
	predicate := s["predicate"].(map[string]any)
	build := predicate["buildDefinition"].(map[string]any)
	if p := build["externalParameters"].(map[string]any); p["version"] != "1.2.3" || p["image"] != true ||
		p["uncommittedChanges"] != false {
		t.Errorf("parameters: got %v", p)
	}
	source := build["resolvedDependencies"].([]any)[0].(map[string]any)
	if source["uri"] != "git+"+project["REPOSITORY"] || source["digest"].(map[string]any)["gitCommit"] != revision {
		t.Errorf("source: got %v", source)
	}
	if !strings.Contains(text, "pkg:golang/std@1.") || !strings.Contains(text, `"name": "packaging/go.sum"`) {
		t.Errorf("statement: got no version of Go, or no modules:\n%s", text)
	}
	builder := func(s map[string]any) any {
		return s["predicate"].(map[string]any)["runDetails"].(map[string]any)["builder"].(map[string]any)["id"]
	}
	if builder(s) != project["BUILDER"] {
		t.Errorf("builder: got %v, want %s", builder(s), project["BUILDER"])
	}
	t.Setenv("BUILDER_ID", "https://example.org/builder")
	if _, s := write(); builder(s) != "https://example.org/builder" {
		t.Errorf("builder: got %v", builder(s))
	}
}

// TestReleaseNamesCommit checks that a release names its commit.
func TestReleaseNamesCommit(t *testing.T) {
	r := releaseBuilder{root: t.TempDir()}
	t.Setenv("SOURCE_DATE_EPOCH", "1000")
	for text, want := range map[string]string{"": "set SOURCE_REVISION", "main": "40 hexadecimal digits"} {
		t.Setenv("SOURCE_REVISION", text)
		if err := r.readCommit(true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("SOURCE_REVISION=%s: got %v, want %q", text, err, want)
		}
	}
}
