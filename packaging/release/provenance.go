package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// inTotoStatement is an in-toto Statement of version 1, with SLSA provenance of version 1 as its predicate:
// https://slsa.dev/spec/v1.0/provenance.
type inTotoStatement struct {
	Type          string               `json:"_type"`
	Subject       []resourceDescriptor `json:"subject"`
	PredicateType string               `json:"predicateType"`
	Predicate     slsaProvenance       `json:"predicate"`
}

// resourceDescriptor is a ResourceDescriptor of in-toto.
type resourceDescriptor struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type slsaProvenance struct {
	BuildDefinition struct {
		BuildType            string               `json:"buildType"`
		ExternalParameters   map[string]any       `json:"externalParameters"`
		InternalParameters   map[string]any       `json:"internalParameters"`
		ResolvedDependencies []resourceDescriptor `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder map[string]string `json:"builder"`
	} `json:"runDetails"`
}

// writeProvenance writes the statement about all artefacts written before. The statement is unsigned: the publisher or
// a transparency log can sign it. The statement has no build times, so the same commit produces the same bytes.
func (r *releaseBuilder) writeProvenance(image, dirty bool) error {
	s := inTotoStatement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	slices.Sort(r.artefacts)
	for _, name := range r.artefacts {
		b, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resourceDescriptor{Name: name,
			Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(b))}})
	}
	version, err := r.goVersion()
	if err != nil {
		return err
	}
	repository := r.project["REPOSITORY"]
	d := &s.Predicate.BuildDefinition
	d.BuildType = repository + "/tree/main/packaging/release@v1"
	d.ExternalParameters = map[string]any{"version": r.version, "image": image, "uncommittedChanges": dirty}
	d.InternalParameters = map[string]any{"sourceDateEpoch": r.time.Unix(), "architectures": architectures,
		"imageSuite": r.project["IMAGE_SUITE"]}
	d.ResolvedDependencies = []resourceDescriptor{
		{URI: "git+" + repository, Digest: map[string]string{"gitCommit": r.revision}},
		{URI: "pkg:golang/std@" + strings.TrimPrefix(version, "go"), Name: version},
	}
	for _, sums := range []string{"go.sum", "packaging/go.sum"} { // these files contain the digests of all modules
		b, err := os.ReadFile(filepath.Join(r.root, sums))
		if err != nil {
			return err
		}
		d.ResolvedDependencies = append(d.ResolvedDependencies,
			resourceDescriptor{Name: sums, Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(b))}})
	}
	s.Predicate.RunDetails.Builder = map[string]string{"id": r.project["BUILDER"]}
	if id := os.Getenv("BUILDER_ID"); id != "" {
		s.Predicate.RunDetails.Builder["id"] = id
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return r.writeArtefact("verbena-"+r.version+".provenance.json", append(b, '\n'))
}

// goVersion returns the version of the Go toolchain that builds the binaries.
func (r *releaseBuilder) goVersion() (string, error) {
	c := exec.Command("go", "env", "GOVERSION")
	c.Dir = r.root
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("go env GOVERSION: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
