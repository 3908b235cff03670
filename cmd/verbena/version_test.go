package main

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"verbena/internal/ctl"
)

func TestVersion(t *testing.T) {
	out := ok(t, verbena(t, "--version"))
	if command := ok(t, verbena(t, "version")); command != out {
		t.Errorf("verbena version prints %q, verbena --version %q", command, out)
	}
	want := fmt.Sprintf(`^verbena \S.* \(%s.*, control protocol %d\)\n$`, regexp.QuoteMeta(runtime.Version()), ctl.Protocol)
	if !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("got %q, want %s", out, want)
	}
	if kernel := ok(t, verbena(t, "version", "--kernel")); !strings.HasPrefix(kernel, out+"Linux ") || !strings.Contains(kernel, "\nSYNC_WAKE_UP ") {
		t.Errorf("got %q", kernel)
	}
	of := func(v string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: v}, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123"}
	tail := fmt.Sprintf(" (go1.26, control protocol %d)", ctl.Protocol)
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{of("v0.2.0", revision), "verbena v0.2.0" + tail},
		{of("(devel)", revision), "verbena revision 0123456789ab" + tail},
		{of("", revision, debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "verbena revision 0123456789ab, modified" + tail},
		{of("(devel)"), "verbena of an unknown version" + tail},
		{nil, fmt.Sprintf("verbena of an unknown version (unknown, control protocol %d)", ctl.Protocol)},
	} {
		if got := version(c.info); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	release = "v1.2.3"
	t.Cleanup(func() { release = "" })
	if got, want := version(of("(devel)", revision)), "verbena v1.2.3"+tail; got != want {
		t.Errorf("a release: got %q, want %q", got, want)
	}
}
