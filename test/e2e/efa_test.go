//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"verbena/test/pyverbs"
)

// efaEnds makes two queue pairs of SRD, and an address handle of the device.
const efaEnds = `
import sys, pyverbs.enums as e, pyverbs.providers.efa.efadv as efa
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.mr import MR
from pyverbs.cq import CQ
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.qp import QPCap, QPInitAttrEx, QPAttr
from pyverbs.wr import SGE, RecvWR
c = Context(name=sys.argv[1]); pd = PD(c); cq = CQ(c, 64); n = 1 << 20
mr = MR(pd, n, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ)
def end():
    qp = efa.SRDQPEx(c, QPInitAttrEx(cap=QPCap(8, 8, 1, 1), qp_type=e.IBV_QPT_DRIVER, scq=cq, rcq=cq, pd=pd,
        send_ops_flags=e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_RDMA_READ,
        comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS), efa.EfaQPInitAttr())
    a = QPAttr(port_num=1); a.qkey = 1; qp.to_rts(a)
    return qp
a, b = end(), end()
ah = AH(pd, attr=AHAttr(gr=GlobalRoute(dgid=c.query_gid(1, 0), sgid_index=0), is_global=1, port_num=1))
`

// efaOrder posts a READ of 1 MB and then a SEND of 8 bytes, and prints the order of the completions: 2 is the SEND.
const efaOrder = efaEnds + `
b.post_recv(RecvWR(sg=[SGE(mr.buf, 8, mr.lkey)], num_sge=1, wr_id=9))
for size in n, 8:
    a.wr_start(); a.wr_id = 1 if size == n else 2; a.wr_flags = e.IBV_SEND_SIGNALED
    a.wr_rdma_read(mr.rkey, mr.buf) if size == n else a.wr_send()
    a.wr_set_ud_addr(ah, b.qp_num, 1); a.wr_set_sge(SGE(mr.buf, size, mr.lkey)); a.wr_complete()
got = []
while len(got) < 3:
    got += cq.poll(16)[1]
assert all(w.status == 0 for w in got), [(w.wr_id, w.status) for w in got]
print([w.wr_id for w in got if w.wr_id != 9])
`

// efaOutstanding posts receives, and SENDs to a queue pair without receives. It prints the flushed requests.
const efaOutstanding = efaEnds + `
for i in range(3):
    a.wr_start(); a.wr_id = i; a.wr_flags = e.IBV_SEND_SIGNALED; a.wr_send()
    a.wr_set_ud_addr(ah, b.qp_num, 1); a.wr_set_sge(SGE(mr.buf, 8, mr.lkey)); a.wr_complete()
    a.post_recv(RecvWR(sg=[SGE(mr.buf, 8, mr.lkey)], num_sge=1, wr_id=10 + i))
print('ready', flush=True)
got = []
while len(got) < 6:
    got += cq.poll(16)[1]
print(sorted(w.wr_id for w in got if w.status == e.IBV_WC_WR_FLUSH_ERR))
`

// TestKilledServiceFlushesEFA tests that a polling program gets a flush error for each request in flight when its
// service is killed.
func TestKilledServiceFlushesEFA(t *testing.T) {
	t.Parallel()
	const python = "/usr/bin/python3"
	needCondition(t, exec.Command(python, "-c", "import pyverbs.device").Run() == nil,
		"python3-pyverbs: scripts/deps installs it")
	w := startService(t, testUsers()[0], "", "--link", "efa0="+unusedAddr()+",personality=efa")
	cmd := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", python, "-c", efaOutstanding, "efa0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := bufio.NewReader(out)
	if line, err := read.ReadString('\n'); line != "ready\n" {
		t.Fatalf("program: got %q, %v, want ready", line, err)
	}
	if err := w.serve.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(read)
	if want := "[0, 1, 2, 10, 11, 12]\n"; string(rest) != want {
		t.Errorf("flushed requests: got %q, %v, want %q", rest, err, want)
	}
	_ = cmd.Wait()
}

// runEFAPyverbs runs rdma-core's own tests of the provider efa. Every test must pass, but that of the source GID in
// completions, which the device lacks.
func runEFAPyverbs(t *testing.T, w *testService, device string) {
	run, err := filepath.Abs("../pyverbs/run")
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.verbenaCommand(w.contextWithTimeout(240), "run", "--", run, "--provider", "efa", device, "1", "0")
	if cache, err := os.UserCacheDir(); err == nil {
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache) // this cache may contain the tests
	}
	out, runErr := cmd.Output()
	got, err := pyverbs.Parse(bytes.NewReader(out))
	if err != nil {
		t.Fatalf("%v: %v\n%s", runErr, err, out)
	}
	if got.Count(pyverbs.OK) < 15 || got.Count(pyverbs.OK) < len(got)-1 || runErr != nil {
		t.Errorf("pyverbs: %v: got\n%s, want success of all tests but one", runErr, out)
	}
}

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
	t.Run("pyverbs", func(t *testing.T) {
		needCondition(t, exec.Command("/usr/bin/python3", "-c", "import pyverbs.device").Run() == nil,
			"python3-pyverbs: scripts/deps installs it")
		runEFAPyverbs(t, w, "rdmap0s6")
		if got := w.mustRun("run", "--", "/usr/bin/python3", "-c", efaOrder, "rdmap0s6"); got != "[2, 1]\n" {
			t.Errorf("completions: got order %s, want the short SEND before the long READ", got)
		}
	})
	t.Run("libfabric", func(t *testing.T) {
		needProgram(t, "libfabric-bin", "fi_pingpong")
		// The efa provider of libfabric 1.17 gives up if a device is not EFA.
		w := startService(t, testUsers()[0], "", "--link", "rdmap0s6="+unusedAddr()+",personality=efa")
		for _, kind := range []string{"dgram", "rdm"} {
			if failure := runLibfabric(w, w, []string{"-p", "efa", "-e", kind}, "127.0.0.1"); failure != "" {
				t.Error(failure)
			}
		}
		// The provider uses shared memory between processes of one host, unless it is disabled.
		const noShm = "FI_EFA_ENABLE_SHM_TRANSFER=0"
		w.mustRun("fault", "add", "--dev", "rdmap0s6", "--drop", "1%", "--qp-type", "srd")
		rdm := []string{"-p", "efa", "-e", "rdm", "-S", "65536"}
		failure := runLibfabric(w, w, rdm, "127.0.0.1", noShm)
		if failure != "" { // the last acknowledgement may be lost when the peer ends
			t.Logf("repeat: %s", failure)
			failure = runLibfabric(w, w, rdm, "127.0.0.1", noShm)
		}
		if failure != "" {
			t.Error(failure)
		}
	})
	w.awaitNoProgramObjects()
}
