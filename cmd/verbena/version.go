package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/supervisor"
)

// versionFlag prints the version and ends the process. versionFlag ignores the rest of the command line.
type versionFlag bool

// BeforeReset prints the version and exits. (kong)
func (versionFlag) BeforeReset(app *kong.Kong) error {
	info, _ := debug.ReadBuildInfo()
	fmt.Fprintln(app.Stdout, versionText(info))
	app.Exit(0)
	return nil
}

// versionCmd is the command form of versionFlag.
type versionCmd struct {
	Kernel bool `help:"Also list the kernel features that Verbena uses, and the consequences of missing ones."`
}

func (v *versionCmd) Run() error {
	info, _ := debug.ReadBuildInfo()
	fmt.Println(versionText(info))
	if !v.Kernel {
		return nil
	}
	list, err := supervisor.Features()
	if err != nil {
		return err
	}
	fmt.Printf("Linux %s: %s\n", kernelRelease(), supervisor.DescribeAccess())
	return printOutput(false, list, func(w io.Writer) {
		fmt.Fprintln(w, "FEATURE\tSINCE\tHERE\tWITHOUT IT")
		for _, f := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Name, f.Since, yesNo(f.Here), f.Without)
		}
	})
}

// kernelRelease returns the release of the running kernel, such as 6.1.0-56-amd64.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "of an unknown release"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// kernelFeatures returns a description of the running kernel's features.
type kernelFeatures struct {
	features []supervisor.Feature
	err      error // set if no program can be started on this kernel
}

// probeKernel determines the features of the kernel if the log needs them. probeKernel must run before confinement,
// which denies the necessary system calls.
func probeKernel(log *slog.Logger) (k kernelFeatures) {
	if log.Enabled(context.Background(), slog.LevelInfo) {
		k.features, k.err = supervisor.Features()
	}
	return k
}

// logMissingFeatures logs each promise that the kernel cannot keep. At level Debug it also logs all missing features.
func (k kernelFeatures) logMissingFeatures(log *slog.Logger) {
	if k.err != nil {
		log.Warn("no program can be started on this kernel", "release", kernelRelease(), "err", k.err)
		return
	}
	var missing []string
	for _, f := range k.features {
		if f.Here {
			continue
		}
		missing = append(missing, f.Name)
		if f.Promise != "" {
			log.Info("not promised on this kernel", "release", kernelRelease(), "lacks", f.Name, "since", f.Since,
				"promise",
				f.Promise)
		}
	}
	log.Debug("kernel", "release", kernelRelease(), "without", strings.Join(missing, ", "), "memory",
		supervisor.DescribeAccess())
}

// releaseVersion is the version of a release, set by the linker (packaging/release).
var releaseVersion string

// versionText returns a description of a build: its version or revision, Go's version, and the version of the control
// protocol.
func versionText(info *debug.BuildInfo) string {
	goVersion := "unknown"
	if info != nil {
		goVersion = info.GoVersion
	}
	return fmt.Sprintf("verbena %s (%s, control protocol %d)", buildName(info), goVersion, ctl.ProtocolVersion)
}

// buildName returns a build's version or revision.
func buildName(info *debug.BuildInfo) string {
	name := "of an unknown version"
	if info != nil {
		if releaseVersion != "" {
			name = releaseVersion
		} else if v := info.Main.Version; v != "" && v != "(devel)" {
			name = v
		} else if r := buildSetting(info, "vcs.revision"); r != "" {
			const short = 12
			name = "revision " + r[:min(short, len(r))]
			if buildSetting(info, "vcs.modified") == "true" {
				name += ", modified"
			}
		}
	}
	return name
}

func buildSetting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
