package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packagePath returns the path of an archive's file in a package of the format, or "" if the package omits the file.
func packagePath(format, name string) string {
	dir, base := filepath.Split(name)
	doc := "/usr/share/doc/verbena/"
	switch dir {
	case "completions/":
		switch {
		case strings.HasSuffix(base, ".bash"):
			return "/usr/share/bash-completion/completions/verbena"
		case strings.HasSuffix(base, ".fish"):
			return "/usr/share/fish/vendor_completions.d/verbena.fish"
		case format == "deb":
			return "/usr/share/zsh/vendor-completions/_verbena"
		}
		return "/usr/share/zsh/site-functions/_verbena"
	case "man/man1/":
		return "/usr/share/man/man1/" + base + ".gz"
	case "systemd/":
		return "/usr/lib/systemd/system/" + base
	case "docs/", "docs/results/":
		return doc + name
	}
	switch {
	case base == "verbena":
		return "/usr/bin/verbena"
	case base == "LICENSE" && format == "deb":
		return doc + "copyright"
	case base == "LICENSE" || base == "NOTICE" && format == "rpm":
		return "/usr/share/licenses/verbena/" + base
	}
	return doc + base
}

// buildPackages builds the packages of an architecture.
func (r *releaseBuilder) buildPackages(arch string, all []archiveFile) error {
	for _, format := range []string{"deb", "rpm"} {
		info, err := r.describePackage(format, arch, all)
		if err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		nfpm.WithDefaults(info)
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		var out bytes.Buffer
		if err := packager.Package(info, &out); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		if err := r.writeArtefact(packager.ConventionalFileName(info), out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// describePackage writes the description of a package. The paths of the package's files are relative to the working
// directory.
func (r *releaseBuilder) describePackage(format, arch string, all []archiveFile) (*nfpm.Info, error) {
	info := &nfpm.Info{
		Name: "verbena", Arch: arch, Platform: "linux", Version: r.version, VersionSchema: "semver",
		Section: "net", Priority: "optional", Maintainer: r.project["MAINTAINER"], Homepage: r.project["REPOSITORY"],
		License: "Apache-2.0",
		Description: "RDMA in user space, without RDMA hardware, kernel module or root\n" +
			"`verbena run -- PROGRAM` gives an unmodified verbs program a software RoCEv2\n" +
			"device; its network and its device can be made to fail.",
		MTime: r.time,
	}
	info.Scripts = nfpm.Scripts{PostInstall: filepath.Join(r.root, "packaging/postinstall"),
		PreRemove:  filepath.Join(r.root, "packaging/preremove"),
		PostRemove: filepath.Join(r.root, "packaging/postremove")}
	if format == "deb" {
		// Without the provider, programs find no devices.
		info.Recommends = []string{"ibverbs-providers"}
		info.Suggests = []string{"ibverbs-utils", "rdmacm-utils", "perftest"}
	} else {
		info.Release = "1"
		info.Recommends = []string{"libibverbs"}
		info.RPM = nfpm.RPM{Group: "System Environment/Daemons", Summary: strings.SplitN(info.Description, "\n", 2)[0],
			BuildHost: "localhost"}
	}
	group := archiveFile{"sysusers.conf", 0o644,
		[]byte("# The users of a service of root, see verbena.service.\ng rdma -\n")}
	for _, f := range append(all, group) {
		to := packagePath(format, f.name)
		if f.name == group.name {
			to = "/usr/lib/sysusers.d/verbena.conf"
		}
		content := f.content
		if strings.HasSuffix(to, ".gz") {
			var err error
			if content, err = gzipContent(content); err != nil {
				return nil, err
			}
		}
		source := filepath.Join(r.work, arch, format, to)
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(source, content, 0o644); err != nil {
			return nil, err
		}
		info.Contents = append(info.Contents, &files.Content{Source: source, Destination: to,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.time}})
	}
	return info, nil
}
