//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"verbena/internal/testutil"
)

// TestRdmaTool tests that the unmodified rdma tool of iproute2 lists the devices and the objects of programs, and
// adds and deletes devices.
func TestRdmaTool(t *testing.T) {
	t.Parallel()
	needProgram(t, "iproute2", "rdma")
	needProgram(t, "rdmacm-utils", "rping")
	needProgram(t, "ibverbs-utils", "ibv_srq_pingpong")
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			addr := unusedAddr()
			w := startService(t, u, "", "--link", "rxe0="+addr)
			rdma := func(args ...string) string { return w.mustRun(append([]string{"run", "--", "rdma"}, args...)...) }
			for _, c := range []struct{ args, want string }{
				{"dev", "0: rxe0: node_type ca "},
				{"link", "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo"},
				{"system", "netns shared"},
				{"resource", "0: rxe0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0"},
				{"statistic show link rxe0/1", "sent_pkts"},
			} {
				if out := rdma(strings.Fields(c.args)...); !strings.Contains(out, c.want) {
					t.Errorf("rdma %s: no %q in:\n%s", c.args, c.want, out)
				}
			}
			var links []struct {
				IfName string `json:"ifname"`
				Port   int    `json:"port"`
				Netdev string `json:"netdev"`
			}
			if err := json.Unmarshal([]byte(rdma("link", "show", "-j")), &links); err != nil || len(links) != 1 ||
				links[0].Netdev != "lo" {
				t.Errorf("rdma link show -j: %+v, %v", links, err)
			}
			s := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "rping", "-s", "-a", addr)
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			testutil.PollUntil(func() bool { return strings.Contains(rdma("resource", "show", "cm_id"), "state LISTEN") })
			c := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "rping", "-c", "-a", addr)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			testutil.PollUntil(func() bool { return strings.Count(rdma("resource", "show", "qp"), "state RTS") == 2 })
			if out := rdma("resource", "show", "cm_id"); strings.Count(out, "state CONNECT") != 2 ||
				strings.Count(out, "comm rping") != 3 {
				t.Errorf("rdma resource show cm_id: got\n%s", out)
			}
			// The counts of rdma and of `verbena res show` must agree.
			var pds, mrs, cqs, qps int
			for _, h := range w.showResources() {
				pds, mrs, cqs, qps = pds+h.PDs, mrs+len(h.MRs), cqs+len(h.CQs), qps+len(h.QPs)
			}
			want := fmt.Sprintf("pd %d cq %d qp %d cm_id 3 mr %d ctx 2 srq 0", pds, cqs, qps, mrs)
			if out := rdma("resource"); !strings.Contains(out, want) {
				t.Errorf("rdma resource: got no %q in:\n%s", want, out)
			}
			// The entry of an SRQ shows its PD, and the queue pairs that receive from it.
			p := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "ibv_srq_pingpong", "-d", "rxe0", "-g", "1", "-q",
				"3", "-p",
				unusedTCPPort())
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			var srqs []struct {
				PDN  int      `json:"pdn"`
				LQPN []string `json:"lqpn"`
			}
			srq := ""
			testutil.PollUntil(func() bool {
				srq = rdma("-j", "resource", "show", "srq")
				return strings.Contains(srq, "lqpn") && strings.Count(rdma("resource", "show", "qp"), "ibv_srq") == 3
			})
			srq = rdma("-j", "resource", "show", "srq")
			if err := json.Unmarshal([]byte(srq), &srqs); err != nil || len(srqs) != 1 || srqs[0].PDN == 0 ||
				len(srqs[0].LQPN) == 0 {
				// iproute2 prints consecutive numbers as a range, and truncates large numbers in ranges.
				t.Errorf("rdma resource show srq: got no PD, or no queue pair: %v\n%s", err, srq)
			}
			for _, p := range []*exec.Cmd{c, s, p} {
				syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
				_ = p.Wait()
			}
			rdma("link", "add", "rxe7", "type", "rxe", "netdev", "lo")
			if out := w.mustRun("link", "show"); !strings.Contains(out, "rxe7") {
				t.Errorf("rdma link add: got no rxe7:\n%s", out)
			}
			rdma("link", "delete", "rxe7")
			if out := w.mustRun("link", "show"); strings.Contains(out, "rxe7") {
				t.Errorf("rdma link delete: got rxe7 still in the list:\n%s", out)
			}
			w.awaitNoCMObjects()
		})
	}
}

// TestRdmaToolSeesOnlyOwnObjects tests the rdma tool as a user of another user's service. The user must see only their
// own objects, and must not be able to change devices.
func TestRdmaToolSeesOnlyOwnObjects(t *testing.T) {
	needRoot(t)
	needProgram(t, "iproute2", "rdma")
	needProgram(t, "rdmacm-utils", "rping")
	addr := unusedAddr()
	w := startService(t, testUsers()[0], "", "--mode", "0666", "--link", "rxe0="+addr)
	os.Chmod(filepath.Dir(w.socket), 0o755)
	s := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "rping", "-s", "-a", addr)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		syscall.Kill(-s.Process.Pid, syscall.SIGKILL)
		_ = s.Wait()
	}()
	testutil.PollUntil(func() bool {
		return strings.Contains(w.mustRun("run", "--", "rdma", "resource", "show", "cm_id"), "LISTEN")
	})
	other := w.asUser(testUsers()[1].uid)
	if out := other.mustRun("run", "--", "rdma", "resource"); !strings.Contains(out, "cm_id 0 ") ||
		!strings.Contains(out, "ctx 0 ") {
		t.Errorf("another user sees:\n%s", out)
	}
	for _, args := range [][]string{{"link", "add", "rxe7", "type", "rxe", "netdev", "lo"}, {"link", "delete", "rxe0"}} {
		out, err := other.verbenaCommand(w.contextWithTimeout(20), append([]string{"run", "--", "rdma"},
			args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "not permitted") {
			t.Errorf("rdma %v by another user: got %v: %s", args, err, out)
		}
	}
}
