//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// TestEFAPrograms runs programs with the efa provider of libibverbs on a device that posts by stores to memory, beside
// an rxe device of the same service. The device resolves to a PCI function of the driver efa.
func TestEFAPrograms(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_devinfo", "ibv_ud_pingpong")
	addr := unusedAddr()
	w := startService(t, testUsers()[0], "", "--link", "rdmap0s6="+addr+",personality=efa", "--link", "rxe0="+unusedAddr())
	out := w.mustRun("run", "--", "ibv_devinfo", "-v", "-d", "rdmap0s6")
	for _, want := range []string{"transport:\t\t\tunspecified", "vendor_id:\t\t\t0x1d0f", "port_lmc:\t\t0x01",
		"gid_tbl_len:\t\t1", "GID[  0]:\t\t::ffff:" + addr} {
		if !strings.Contains(out, want) {
			t.Errorf("ibv_devinfo: got\n%s, want %q in it", out, want)
		}
	}
	out = w.mustRun("run", "--", "sh", "-c", `d=/sys/class/infiniband/rdmap0s6
basename $(readlink -f $d/device/driver); cat $d/device/vendor $d/ports/1/lid_mask_count $d/node_type
cat /sys/class/infiniband_verbs/uverbs?/abi_version; ls /sys/bus/pci/drivers/efa`)
	if want := "efa\n0x1d0f\n1\n7: unspecified\n1\n2\n0000:81:00.0\n"; out != want {
		t.Errorf("sysfs: got %q, want %q", out, want)
	}
	for _, args := range []string{"-d rdmap0s6 -g 0 -n 200", "-d rdmap0s6 -g 0 -n 200 -e", "-d rxe0 -g 1 -n 200"} {
		p := &programPair{program: "ibv_ud_pingpong", server: w, client: w, serverArgs: strings.Fields(args),
			clArgs: strings.Fields(args), timeout: 120}
		if err := p.run(); err != nil {
			t.Errorf("ibv_ud_pingpong %s: %v", args, err)
		}
	}
	rc := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "ibv_rc_pingpong", "-d", "rdmap0s6", "-g", "0")
	if err := rc.Run(); err == nil {
		t.Error("ibv_rc_pingpong: got success, want an error: the adapter has no connections")
	}
	t.Run("libfabric", func(t *testing.T) {
		needProgram(t, "libfabric-bin", "fi_pingpong")
		// The efa provider of libfabric 1.17 gives up if a device is not EFA.
		w := startService(t, testUsers()[0], "", "--link", "rdmap0s6="+unusedAddr()+",personality=efa")
		if failure := runLibfabric(w, w, []string{"-p", "efa", "-e", "dgram"}, "127.0.0.1"); failure != "" {
			t.Error(failure)
		}
	})
	w.awaitNoProgramObjects()
}
