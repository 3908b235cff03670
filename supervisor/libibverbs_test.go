package supervisor

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"verbena/ib"
	"verbena/uverbs"
)

// TestLibibverbsToolsWork runs the C library and its tools with package uverbs.
func TestLibibverbsToolsWork(t *testing.T) {
	for _, tool := range []string{"ibv_devices", "ibv_devinfo"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	core := &ib.Core{}
	srv, err := uverbs.NewServer(core, uverbs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	w := newFixture(t)
	w.sup.Close()
	if w.sup, err = NewSupervisor(SupervisorConfig{Uverbs: srv, Dir: newShmDir(t), Log: w.logs.logger()}); err != nil {
		t.Fatal(err)
	}
	defer w.sup.Close()
	dev := ib.NewDevice("rxe0", newFakeDriver(), t.Logf)
	if err := core.Register(dev); err != nil {
		t.Fatal(err)
	}
	defer core.Unregister(dev)

	out := w.mustRun("ibv_devices")
	if !regexp.MustCompile(`(?m)^\s+rxe0\s+0200000000000001$`).MatchString(out) {
		t.Errorf("ibv_devices: got the output\n%s\nwant rxe0 and its GUID", out)
	}
	out = w.mustRun("ibv_devinfo", "-v")
	var gids []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "GID[") {
			gids = append(gids, strings.Join(strings.Fields(line), " "))
		}
	}
	want := "GID[ 0]: fe80::1, RoCE v2; GID[ 3]: ::ffff:127.0.0.1, RoCE v2"
	if got := strings.Join(gids, "; "); got != want {
		t.Errorf("GIDs of ibv_devinfo -v: got %q, want %q", got, want)
	}
	for _, want := range []string{"PORT_ACTIVE", "link_layer:\t\tEthernet", "hca_id:\trxe0"} {
		if !strings.Contains(out, want) {
			t.Errorf("ibv_devinfo -v: got no %q, want it:\n%s", want, out)
		}
	}
}
