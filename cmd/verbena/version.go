package main

import (
	"fmt"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
)

// versionFlag prints the version and ends the command, whatever else the command line has.
type versionFlag bool

// BeforeReset prints the version and exits. (kong)
func (versionFlag) BeforeReset(app *kong.Kong) error {
	info, _ := debug.ReadBuildInfo()
	fmt.Fprintln(app.Stdout, version(info))
	app.Exit(0)
	return nil
}

// versionCmd is the flag as a command.
type versionCmd struct{}

func (versionCmd) Run() error {
	info, _ := debug.ReadBuildInfo()
	fmt.Println(version(info))
	return nil
}

// release is the version of a release, which the linker sets (packaging/release).
var release string

// version describes a build: its version or revision, Go's version, and the number of the control protocol.
func version(info *debug.BuildInfo) string {
	goVersion := "unknown"
	if info != nil {
		goVersion = info.GoVersion
	}
	return fmt.Sprintf("verbena %s (%s, control protocol %d)", buildName(info), goVersion, ctl.Protocol)
}

// buildName returns a build's version or revision.
func buildName(info *debug.BuildInfo) string {
	name := "of an unknown version"
	if info != nil {
		if release != "" {
			name = release
		} else if v := info.Main.Version; v != "" && v != "(devel)" {
			name = v
		} else if r := setting(info, "vcs.revision"); r != "" {
			const short = 12
			name = "revision " + r[:min(short, len(r))]
			if setting(info, "vcs.modified") == "true" {
				name += ", modified"
			}
		}
	}
	return name
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
