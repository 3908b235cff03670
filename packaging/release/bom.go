package main

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/licensedetect/local"
	"github.com/rs/zerolog"
)

// writeBOM writes the list of the modules in a binary with their licences. The list comes from the build information in
// the binary.
func (r *releaseBuilder) writeBOM(name, arch string) error {
	// The generator searches licences in the module cache, relative to its working directory.
	if err := os.Chdir(r.root); err != nil {
		return err
	}
	log := zerolog.Nop()
	g, err := bin.NewGenerator(r.binaryPath(arch), bin.WithIncludeStdlib(true),
		bin.WithLicenseDetector(local.NewDetector(log)),
		bin.WithLogger(log), bin.WithVersionOverride("v"+r.version))
	if err != nil {
		return err
	}
	b, err := g.Generate()
	if err != nil {
		return err
	}
	b.Metadata.Timestamp = r.time.Format(time.RFC3339)
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b); err != nil {
		return err
	}
	return r.writeArtefact(filepath.Base(name), out.Bytes())
}
