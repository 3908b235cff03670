package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"verbena/cmd/verbena/internal/measure"
)

// TestEmbeddedExchanges tests that each command measures an exchange with both ends in one process, as text and as
// JSON.
func TestEmbeddedExchanges(t *testing.T) {
	for _, line := range []string{
		"pingpong --embedded -n 20", "pingpong --embedded -n 20 --op write --type uc --size 1K --events",
		"pingpong --embedded -n 20 --wire --op read",
		"pingpong --embedded -n 20 --compat",
		"perf --embedded -n 200", "perf --embedded -n 200 --op send --type ud --size 64 --qps 3 --depth 8",
		"perf --embedded --duration 20ms --test bandwidth --op atomic",
	} {
		args := strings.Fields(line)
		if out := mustRun(t, verbenaCommand(t, args...)); !strings.Contains(out, "rxe0") {
			t.Errorf("%s: got %q", line, out)
		}
		out, err := verbenaCommand(t, append(args, "--json")...).Output()
		var r measure.Result
		if err != nil || json.Unmarshal(out, &r) != nil {
			t.Errorf("%s --json: %v\n%s", line, err, out)
			continue
		}
		n := int64(0)
		for _, p := range []*measure.Phase{r.RoundTrip, r.Latency, r.Bandwidth} {
			if p != nil {
				n += p.Messages
			}
		}
		if n == 0 || r.Device != "rxe0" {
			t.Errorf("%s --json: got no measurement:\n%s", line, out)
		}
	}
}

// TestExchangeErrorsNameRemedy tests that the error of an invalid command line names the value and the remedy.
func TestExchangeErrorsNameRemedy(t *testing.T) {
	for line, want := range map[string]string{
		"pingpong --embedded 127.0.0.1":                     "--embedded runs both ends: omit 127.0.0.1",
		"pingpong --embedded --addr 127.0.0.104":            "omit --addr",
		"pingpong --embedded --type xc":                     `--type must be one of "rc","uc","ud"`,
		"pingpong --embedded --type ud --op read":           `type ud has no operation "read"`,
		"pingpong --embedded --type ud --size 5000":         "exceeds the MTU of 4096 bytes",
		"pingpong --embedded --size 1.5":                    `"1.5" is not a number of bytes below 2G: write 4096, 64K or 1M`,
		"pingpong --embedded --size 2G":                     "not a number of bytes below 2G",
		"pingpong --embedded --size 0":                      "size 0 is not in the range from 1 to 67108864\n",
		"pingpong --embedded --size 65M":                    "size 68157440 is not in the range",
		"perf --embedded --op send --qps 1024 --depth 1000": "qps 1024 of depth 1000 need a completion queue of",
		"pingpong --addr 127.0.0.104 --gid-index 99":        "find GID 99 of port 1",
		"perf --addr 127.0.0.104 --ib-port 2":               "query port 2",
		"pingpong --embedded -n 0":                          "is less than 1",
		"pingpong --embedded --compat --op write":           "needs SEND",
		"pingpong --embedded -g 7":                          "find GID 7 of port 1",
		"pingpong --addr 192.0.2.1":                         "192.0.2.1",
		"pingpong --addr 127.0.0.104 -p 1 localhost":        "start the server before the client: `verbena pingpong` without a host",
		"perf --embedded --depth 5000":                      "depth 5000 is not in the range from 1 to 4096",
		"perf --embedded --duration 0s":                     "one must be more than 0",
		"perf --embedded --qps 0":                           "qps 0 is not in the range from 1 to 1024",
		"perf --embedded --mtu 1000":                        "mtu 1000 is not 256",
		"pingpong --embedded --ib-port 2":                   "query port 2",
		"perf --embedded --service":                         "omit them or --service",
		"perf --service --addr 127.0.0.104":                 "omit them or --service",
		"perf -p 0":                                         "choose a port from 1 to 65535",
		"devinfo --embedded --service":                      "omit them or --service",
		"pingpong --embedded --compat --type ud -s 2K ":     "", // the default MTU of 1024 must not reduce the port's MTU
	} {
		if want == "" {
			mustRun(t, verbenaCommand(t, strings.Fields(line)...))
			continue
		}
		mustFail(t, verbenaCommand(t, strings.Fields(line)...), want)
	}
	if _, err := os.Stat("/sys/class/infiniband_verbs"); err == nil {
		t.Log("this host has RDMA devices")
		return
	}
	for _, command := range []string{"devinfo", "pingpong", "perf"} {
		mustFail(t, verbenaCommand(t, command, "--socket", filepath.Join(t.TempDir(), "socket")),
			"this process sees no RDMA device",
			"`verbena serve --daemon`", "`verbena run -- verbena "+command+"`", "--embedded")
	}
	mustFail(t, verbenaCommand(t, "perf", "--wire"), "--wire needs --embedded")
}

// TestDevinfoUsesIbvDevinfoNames tests that devinfo lists the attributes under the names of ibv_devinfo, as text and as
// JSON.
func TestDevinfoUsesIbvDevinfoNames(t *testing.T) {
	out := mustRun(t, verbenaCommand(t, "devinfo", "--embedded"))
	for _, want := range []string{"hca_id:", "rxe0", "max_qp_wr:", "ATOMIC_WRITE", "active_mtu:", "GID[1]:",
		"0000:0000:0000:0000:0000:ffff:7f00:0001", "127.0.0.1, RoCE v2, the default"} {
		if !strings.Contains(out, want) {
			t.Errorf("devinfo: got %s, want %q in it", out, want)
		}
	}
	var r []deviceReport
	if err := json.Unmarshal([]byte(mustRun(t, verbenaCommand(t, "devinfo", "--embedded", "--json"))), &r); err != nil {
		t.Fatal(err)
	}
	if len(r) != 1 || r[0].Name != "rxe0" || r[0].Map["phys_port_cnt"] != 1.0 || len(r[0].Ports) != 1 ||
		r[0].Ports[0].State != "ACTIVE" || !r[0].Ports[0].GIDs[1].Default {
		t.Errorf("devinfo --json: got %+v, want rxe0 with one active port", r)
	}
}
