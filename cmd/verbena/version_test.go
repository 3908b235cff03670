package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"verbena/internal/ctl"
	"verbena/supervisor"
)

// TestLogNamesMissingKernelFeatures tests that the log at the start of a service names each promise that the kernel
// cannot keep, and no other missing feature.
func TestLogNamesMissingKernelFeatures(t *testing.T) {
	var b strings.Builder
	log := slog.New(slog.NewTextHandler(&b, nil))
	list := supervisor.KnownFeatures()
	kernelFeatures{features: list}.logMissingFeatures(log)
	for _, f := range list {
		if got, want := strings.Count(b.String(), " lacks="+f.Name+" "), min(len(f.Promise), 1); got != want {
			t.Errorf("%s: got %d lines, want %d:\n%s", f.Name, got, want, b.String())
		}
	}
	b.Reset()
	for i := range list {
		list[i].Here = true
	}
	kernelFeatures{features: list}.logMissingFeatures(log)
	if b.Len() > 0 {
		t.Errorf("log with a complete kernel: got %q, want none", b.String())
	}
	kernelFeatures{err: supervisor.ErrUnsupported}.logMissingFeatures(log)
	if !strings.Contains(b.String(), "seccomp") {
		t.Errorf("log with a kernel without seccomp: got %q", b.String())
	}
	for _, name := range []string{"Landlock", "SO_PEERPIDFD", "PROCMAP_QUERY", "SO_PASSRIGHTS"} {
		if !slices.ContainsFunc(list, func(f supervisor.Feature) bool { return f.Name == name && f.Promise != "" }) {
			t.Errorf("%s: got no promise that depends on it", name)
		}
	}
}

func TestVersionFlagAndCommandAgree(t *testing.T) {
	out := mustRun(t, verbenaCommand(t, "--version"))
	if command := mustRun(t, verbenaCommand(t, "version")); command != out {
		t.Errorf("verbena version: got %q, verbena --version: got %q, want the same", command, out)
	}
	want := fmt.Sprintf(`^verbena \S.* \(%s.*, control protocol %d\)\n$`, regexp.QuoteMeta(runtime.Version()),
		ctl.ProtocolVersion)
	if !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("version: got %q, want %s", out, want)
	}
	if kernel := mustRun(t, verbenaCommand(t, "version", "--kernel")); !strings.HasPrefix(kernel, out+"Linux ") ||
		!strings.Contains(kernel, "\nSYNC_WAKE_UP ") {
		t.Errorf("version --kernel: got %q, want a list of features", kernel)
	}
	of := func(v string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: v}, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123"}
	tail := fmt.Sprintf(" (go1.26, control protocol %d)", ctl.ProtocolVersion)
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{of("v0.2.0", revision), "verbena v0.2.0" + tail},
		{of("(devel)", revision), "verbena revision 0123456789ab" + tail},
		{of("", revision, debug.BuildSetting{Key: "vcs.modified", Value: "true"}),
			"verbena revision 0123456789ab, modified" + tail},
		{of("(devel)"), "verbena of an unknown version" + tail},
		{nil, fmt.Sprintf("verbena of an unknown version (unknown, control protocol %d)", ctl.ProtocolVersion)},
	} {
		if got := versionText(c.info); got != c.want {
			t.Errorf("version: got %q, want %q", got, c.want)
		}
	}
	releaseVersion = "v1.2.3"
	t.Cleanup(func() { releaseVersion = "" })
	if got, want := versionText(of("(devel)", revision)), "verbena v1.2.3"+tail; got != want {
		t.Errorf("a release: got %q, want %q", got, want)
	}
}
