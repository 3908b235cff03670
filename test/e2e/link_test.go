//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/testutil"
	"verbena/service"
)

// TestPortFlapRaisesEvents tests a port that goes down for a while. A program must get the port events, and its queue
// pair must run out of retries while the port is down. Then the program must be able to connect again. The test uses
// the shortcut and the wire.
func TestPortFlapRaisesEvents(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "portflap")
	for _, args := range [][]string{nil, {"--wire"}} {
		w := startService(t, testUsers()[len(testUsers())-1], "", append([]string{"--link", "rxe0=" + unusedAddr()},
			args...)...)
		cmd := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", program)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said string
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			switch said = lines.Text(); said {
			case "connected":
				w.mustRun("link", "set", "rxe0", "down")
			case "failed":
				w.mustRun("link", "set", "rxe0", "up")
			}
		}
		if err := cmd.Wait(); err != nil || said != "ok" {
			t.Errorf("%v: got %v, after %q\n%s", args, err, said, &stderr)
		}
		w.awaitNoProgramObjects()
	}
}

// TestRateRaisesSpeedEvent tests that a program gets an event for each change of the rate of the link, and reads the
// new width, speed and effective speed of the port.
func TestRateRaisesSpeedEvent(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "portspeed")
	steps := []struct{ rate, says string }{
		{"", "width 1 speed 1 effective 25"},
		{"100Gbit", "width 2 speed 32 effective 1000"},
		{"1.5Gbit", "width 1 speed 8 effective 15"},
		{"none", "width 1 speed 1 effective 25"},
	}
	for _, u := range testUsers() {
		w := startService(t, u, "", "--link", "rxe0="+unusedAddr())
		cmd := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", program, strconv.Itoa(len(steps)-1))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n := 0
		for lines := bufio.NewScanner(stdout); lines.Scan() && n < len(steps); n++ {
			if got := lines.Text(); got != steps[n].says {
				t.Errorf("%s: rate %q: got %q, want %q", u.name, steps[n].rate, got, steps[n].says)
			}
			if n+1 < len(steps) {
				w.mustRun("link", "set", "rxe0", "--rate", steps[n+1].rate)
			}
		}
		if err := cmd.Wait(); err != nil || n != len(steps) {
			t.Errorf("%s: got %v and %d lines, want success and %d\n%s", u.name, err, n, len(steps), &stderr)
		}
		w.awaitNoProgramObjects()
	}
}

// TestShapedFlaps tests programs under a shaper and port flaps. The programs may complete or fail. No objects may
// remain after killed programs, a reset, an unplug, and the removal of a device with a full queue.
func TestShapedFlaps(t *testing.T) {
	t.Parallel()
	needProgram(t, "perftest", "ib_write_bw")
	addr := unusedAddr()
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+addr, "--link", "rxe1="+unusedAddr())
	flaps := 20
	if fullMatrix {
		flaps = 1000
	}
	for _, end := range [][]string{{"link", "set", "rxe1", "--rate", "none"}, {"dev", "reset", "rxe1"},
		{"dev", "unplug", "rxe1"},
		{"dev", "hang", "rxe1"}, {"link", "set", "rxe1", "down"}, {"link", "del", "rxe1"}} {
		w.mustRun("link", "set", "rxe1", "--rate", "1Mbit", "--delay", "2s", "--queue", "1MB", "--ecn-threshold", "1KB")
		port := unusedTCPPort()
		server := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "ib_write_bw", "-d", "rxe0", "-x", "1", "-p",
			port, "-D", "30")
		client := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "ib_write_bw", "-d", "rxe1", "-x", "1", "-p",
			port, "-D", "30",
			"127.0.0.1")
		for i, c := range []*exec.Cmd{server, client} {
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				w.mustRun("wait", "--listen", port)
			}
		}
		testutil.PollUntil(func() bool { return w.readCounter("rxe1", "sent_pkts") > 0 })
		for range flaps {
			w.mustRun("link", "set", "rxe0", "flap=1ms")
		}
		w.mustRun(end...)
		for _, c := range []*exec.Cmd{server, client} {
			c.Process.Signal(syscall.SIGKILL)
			c.Wait()
		}
		w.awaitNoProgramObjects()
		switch end[1] {
		case "unplug":
			w.mustRun("dev", "plug", "rxe1")
		case "hang":
			w.mustRun("dev", "reset", "rxe1")
		case "set":
			w.mustRun("link", "set", "rxe1", "up")
		}
	}
	w.mustRun("link", "add", "rxe1", "--addr", unusedAddr())
	if _, err := w.runPingpong("-n", "100"); err != nil {
		t.Error(err)
	}
	// At the end the service stops with a full queue: see startService.
	w.mustRun("link", "set", "rxe0", "--delay", "1m")
	p := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "ibv_uc_pingpong", "-d", "rxe0", "-g", "1")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.Process.Kill()
	p.Wait()
}

// readCounter returns the value of a device's counter.
func (w *testService) readCounter(dev, name string) (n int) {
	w.t.Helper()
	for l := range strings.Lines(w.mustRun("stat", "show", "--dev", dev)) {
		if f := strings.Fields(l); len(f) == 3 && f[1] == name {
			n = atoi(f[2])
		}
	}
	return n
}

// faultyProgram is a program that runs with verb faults. If it has a client, argv is the server.
type faultyProgram struct {
	name           string
	server, client []string // contains ADDR for the device's address and PORT for a port; the client may be empty
	listens        bool     // true if the server listens on the TCP port
	stays          bool     // true if the server serves several clients in sequence
}

// faultyPingpong returns a program with a client. The client has the server's arguments, followed by the server's
// address.
func faultyPingpong(listens bool, args ...string) faultyProgram {
	return faultyProgram{name: args[0], server: args, client: append(slices.Clone(args), "127.0.0.1"), listens: listens}
}

func (p faultyProgram) withName(name string) faultyProgram {
	p.name = name
	return p
}

// faultyPrograms lists the programs of docs/results/failover-verbs.md. CI runs only the first one.
var faultyPrograms = []faultyProgram{
	faultyPingpong(true, "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "10", "-e", "-p",
		"PORT").withName("ibv_rc_pingpong -e"),
	faultyPingpong(true, "ibv_srq_pingpong", "-d", "rxe0", "-g", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ibv_ud_pingpong", "-d", "rxe0", "-g", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ibv_uc_pingpong", "-d", "rxe0", "-g", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ib_write_bw", "-d", "rxe0", "-x", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ib_write_lat", "-d", "rxe0", "-x", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ib_read_bw", "-d", "rxe0", "-x", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ib_read_lat", "-d", "rxe0", "-x", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ib_atomic_bw", "-d", "rxe0", "-x", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ib_atomic_lat", "-d", "rxe0", "-x", "1", "-n", "10", "-p", "PORT"),
	faultyPingpong(true, "ib_send_bw", "-d", "rxe0", "-x", "1", "-n", "10", "-c", "UD", "-p",
		"PORT").withName("ib_send_bw -c UD"),
	faultyPingpong(true, "ib_send_lat", "-d", "rxe0", "-x", "1", "-n", "10", "-e", "-p",
		"PORT").withName("ib_send_lat -e"),
	faultyPingpong(false, "ib_write_bw", "-d", "rxe0", "-x", "1", "-n", "10", "-R", "-p",
		"PORT").withName("ib_write_bw -R"),
	{name: "rdma_server, rdma_client", server: []string{"rdma_server", "-p", "PORT"},
		client: []string{"rdma_client", "-s", "127.0.0.1", "-p", "PORT"}},
	{name: "rping", server: []string{"rping", "-s", "-a", "127.0.0.1", "-C", "3", "-p", "PORT"},
		client: []string{"rping", "-c", "-a", "127.0.0.1", "-C", "3", "-p", "PORT"}},
	{name: "ucmatose", server: []string{"ucmatose", "-c", "2", "-C", "3", "-p", "PORT"},
		client: []string{"ucmatose", "-c", "2", "-C", "3", "-p", "PORT", "-s", "127.0.0.1"}},
	{name: "udaddy", server: []string{"udaddy", "-C", "3"}, client: []string{"udaddy", "-C", "3", "-s", "127.0.0.1"}},
	{name: "mckey", server: []string{"mckey", "-m", "239.1.2.3", "-b", "ADDR", "-C", "3"},
		client: []string{"mckey", "-m", "239.1.2.3", "-b", "ADDR", "-C", "3", "-s"}},
	{name: "cmtime", server: []string{"cmtime", "-p", "PORT"},
		client: []string{"cmtime", "-s", "127.0.0.1", "-p", "PORT", "-c", "2"}, stays: true},
	{name: "rstream", server: []string{"rstream", "-p", "PORT", "-S", "64", "-C", "3"},
		client: []string{"rstream", "-p", "PORT", "-S", "64", "-C", "3", "-s", "127.0.0.1"}},
	{name: "riostream", server: []string{"riostream", "-p", "PORT", "-S", "64", "-C", "3"},
		client: []string{"riostream", "-p", "PORT", "-S", "64", "-C", "3", "-s", "127.0.0.1"}},
	{name: "qperf -cm 1 rc_lat", server: []string{"qperf", "-lp", "PORT"},
		client:  []string{"qperf", "-lp", "PORT", "127.0.0.1", "-cm", "1", "-t", "1", "rc_lat"},
		listens: true, stays: true},
	{name: "ucx_perftest", server: []string{"env", "UCX_TLS=ib", "UCX_NET_DEVICES=rxe0:1", "ucx_perftest", "-p", "PORT"},
		client: []string{"env", "UCX_TLS=ib", "UCX_NET_DEVICES=rxe0:1", "ucx_perftest", "-p", "PORT", "127.0.0.1", "-t",
			"tag_lat", "-n", "10", "-w", "0"}, listens: true},
	{name: "fi_pingpong -p verbs", server: []string{"fi_pingpong", "-p", "verbs", "-e", "msg", "-I", "5", "-B", "PORT"},
		client: []string{"fi_pingpong", "-p", "verbs", "-e", "msg", "-I", "5", "-P", "PORT", "127.0.0.1"}, listens: true},
	{name: "ibv_devinfo", server: []string{"ibv_devinfo", "-v"}},
	{name: "ibv_asyncwatch, for a second", server: []string{"timeout", "-s", "KILL", "1", "ibv_asyncwatch", "-d", "rxe0"}},
}

// serverName returns the name of the program that a server runs.
func (p *faultyProgram) serverName() string {
	for i, a := range p.server {
		switch {
		case a == "env", strings.Contains(a, "="):
		case a == "timeout":
			return p.server[i+4]
		default:
			return a
		}
	}
	return ""
}

// pairOutcome holds the results of both ends of a run.
type pairOutcome struct {
	server, client string // exit codes; "waits" for an end that did not exit after the other end had failed
	says           string // last line of the end that failed first, or of both ends if both wait
}

func (o pairOutcome) String() string {
	if o.client == "" {
		return o.server
	}
	return o.server + " / " + o.client
}

// describeExit returns the description of a command's exit.
func describeExit(err error) string {
	if err == nil {
		return "0"
	}
	if c := exitCode(err); c >= 0 {
		return fmt.Sprint(c)
	}
	return err.Error()
}

// lastWordLine returns the last line that contains words.
func lastWordLine(out string) string {
	lines := strings.Split(out, "\n")
	for _, l := range slices.Backward(lines) {
		if l = strings.TrimSpace(l); strings.Trim(l, "-+*| ") == "" {
			continue
		}
		if variableOutputPattern.MatchString(l) {
			return "" // lines of figures and numbers only
		}
		return l
	}
	return ""
}

// variableOutputPattern matches output that differs between runs.
var variableOutputPattern = regexp.MustCompile(`0x|[0-9]\.[0-9]|usec|GID`)

// runWithVerbFaults runs a program to its end. If one end has failed and the other still waits, runWithVerbFaults kills
// the waiting end.
func runWithVerbFaults(w *testService, p *faultyProgram, addr string, stay time.Duration) (o pairOutcome, hang bool) {
	ctx := w.contextWithTimeout(60)
	type end struct {
		cmd  *exec.Cmd
		out  bytes.Buffer
		done chan error
	}
	port, dir := unusedTCPPort(), w.t.TempDir()
	start := func(args []string) *end {
		args = slices.Clone(args)
		for i := range args {
			args[i] = strings.NewReplacer("ADDR", addr, "PORT", port).Replace(args[i])
		}
		e := &end{cmd: w.verbenaCommand(ctx, append([]string{"run", "--"}, args...)...), done: make(chan error, 1)}
		e.cmd.Stdout, e.cmd.Stderr = &e.out, &e.out
		e.cmd.Dir = dir // crashing programs write the reason to this file
		e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := e.cmd.Start(); err != nil {
			w.t.Fatal(err)
		}
		go func() { e.done <- e.cmd.Wait() }()
		return e
	}
	await := func(e *end, d time.Duration) string {
		select {
		case err := <-e.done:
			e.done <- err
			return describeExit(err)
		case <-time.After(d):
			return "waits"
		}
	}
	server := start(p.server)
	ends := []*end{server}
	if p.client != nil {
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) &&
			await(server, 20*time.Millisecond) == "waits"; {
			if !p.listens {
				time.Sleep(200 * time.Millisecond)
				break
			}
			if exec.Command(verbenaBinary(w.t), "wait", "--listen", port, "--timeout", "100ms").Run() == nil {
				break
			}
		}
		ends = append(ends, start(p.client))
	}
	// The first end has 10 s to exit, and the other end a short time.
	deadline := time.Now().Add(10 * time.Second)
	first := -1
	for first < 0 && time.Now().Before(deadline) {
		for i, e := range ends {
			if first < 0 && await(e, 5*time.Millisecond) != "waits" {
				first = i
			}
		}
	}
	codes := make([]string, len(ends))
	for i, e := range ends {
		codes[i] = await(e, stay)
		if i == 0 && p.stays && codes[i] == "waits" {
			codes[i] = "serves"
		}
	}
	for _, e := range ends {
		if await(e, 0) == "waits" {
			_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGTERM)
			if await(e, 5*time.Second) == "waits" {
				_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
				await(e, 5*time.Second)
			}
		}
	}
	o.server = codes[0]
	if len(codes) > 1 {
		o.client = codes[1]
	}
	if first >= 0 {
		o.says = lastWordLine(ends[first].out.String())
		for i, c := range codes {
			if c != "0" && c != "waits" && c != "serves" {
				o.says = lastWordLine(ends[i].out.String())
				break
			}
		}
		return o, false
	}
	for _, e := range ends {
		if said := lastWordLine(e.out.String()); said != "" && !strings.Contains(o.says, said) {
			o.says += "; " + said
		}
	}
	o.says = strings.TrimPrefix(o.says, "; ")
	return o, true
}

// TestVerbFaults makes each verb of a program fail once, at each of its calls. The program must exit. The service
// must continue, and must free all objects of the program. With full counts the test writes the tables of
// docs/results/failover-verbs.md. VERB_FAULTS is a pattern that selects programs.
func TestVerbFaults(t *testing.T) {
	t.Parallel()
	programs := faultyPrograms[:1]
	pattern := os.Getenv("VERB_FAULTS")
	if pattern != "" {
		programs = faultyPrograms
	}
	which := regexp.MustCompile(pattern)
	tables := make([]string, len(programs))
	t.Cleanup(func() {
		if pattern == "." {
			text := verbFaultsHeader + strings.Join(tables, "")
			if err := os.WriteFile("../../docs/results/failover-verbs.md", []byte(text), 0o644); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range programs {
		if p := &programs[i]; which.MatchString(p.name) {
			t.Run(strings.ReplaceAll(p.name, " ", ""), func(t *testing.T) {
				t.Parallel()
				tables[i] = failEachVerb(t, p, pattern != "")
			})
		}
	}
}

// failEachVerb makes each verb of a program fail, at its first call, or with each at every call. failEachVerb
// returns the outcomes as rows of the table.
func failEachVerb(t *testing.T, p *faultyProgram, each bool) string {
	if _, err := exec.LookPath(p.serverName()); err != nil {
		needCondition(t, false,
			p.serverName()+": apt-get install ibverbs-utils perftest rdmacm-utils qperf ucx-utils libfabric-bin")
	}
	addr := unusedAddr()
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+addr)
	// These rules count the calls, with almost no other effect.
	for _, v := range service.VerbNames() {
		w.mustRun("fault", "add", "--verb", v, "--delay", "1ns")
	}
	clean, hang := runWithVerbFaults(w, p, addr, 5*time.Second)
	if hang || p.client != nil && (clean.server != "0" && clean.server != "serves" || clean.client != "0") {
		t.Fatalf("%s without faults: %v: %s", p.name, clean, clean.says)
	}
	calls := map[string]int{}
	for _, r := range w.verbFaults() {
		if r.Seen > 0 {
			calls[r.Verb.Verb] = r.Seen
		}
	}
	w.mustRun("fault", "clear")
	if len(calls) < 2 {
		t.Fatalf("%s: calls: got only %v", p.name, calls)
	}
	var rows strings.Builder
	var odd []string // verbs after whose failure both ends wait, or an end crashes
	for _, verb := range service.VerbNames() {
		n := calls[verb]
		if !each {
			n = min(n, 1)
		}
		var became []pairOutcome
		var nths []int
		for nth := 1; nth <= min(n, maxFailedCalls); nth++ {
			w.mustRun("fault", "add", "--verb", verb, "--errno", "ENOMEM", "--nth", fmt.Sprint(nth))
			o, hang := runWithVerbFaults(w, p, addr, time.Second)
			r := w.verbFaults()
			switch {
			case len(r) != 1 || r[0].Hit > 1 || r[0].Seen >= nth && r[0].Hit == 0:
				t.Errorf("%s, %s %d: state of the rule: got %+v", p.name, verb, nth, r)
			case hang && !each:
				t.Errorf("%s, %s %d: neither end exits", p.name, verb, nth)
			}
			w.mustRun("fault", "clear")
			w.awaitNoProgramObjects()
			if r[0].Hit == 0 {
				continue // the program did not reach this call in this run
			}
			became, nths = append(became, o), append(nths, nth)
			if crashed := slices.Contains(crashExitCodes, o.server) || slices.Contains(crashExitCodes, o.client); (hang ||
				crashed) && each {
				if odd = append(odd, verb); hangReason(p.name, verb) == "" {
					t.Errorf("%s, %s %d: got %v without a reason: add the reason to hangReasons: %s", p.name, verb, nth, o, o.says)
				}
			}
		}
		if len(became) > 0 {
			fmt.Fprintf(&rows, "| %s | %d | %s | %s |\n", verb, calls[verb], formatOutcomes(nths, became),
				firstErrorMessage(became))
		}
	}
	// Remaining faults would affect this run of the program.
	if again, hang := runWithVerbFaults(w, p, addr, 5*time.Second); hang || again.server != clean.server ||
		again.client != clean.client {
		t.Errorf("%s after the faults: %v: %s", p.name, again, again.says)
	}
	table := fmt.Sprintf("\n## %s\n\n| verb | calls | exit codes | it says |\n|---|---|---|---|\n%s", p.name, &rows)
	return table + hangReasonsOf(p.name, odd)
}

// hangReasonsOf returns the explanations for verbs after which both ends wait, or an end crashes.
func hangReasonsOf(program string, verbs []string) (list string) {
	var whys []string
	of := map[string][]string{}
	for _, v := range slices.Compact(verbs) {
		why := hangReason(program, v)
		if of[why] == nil {
			whys = append(whys, why)
		}
		of[why] = append(of[why], v)
	}
	for _, why := range whys {
		list += fmt.Sprintf("\n- %s: %s", strings.Join(of[why], ", "), why)
	}
	if list != "" {
		list = "\n" + list[1:] + "\n"
	}
	return list
}

// formatOutcomes returns the outcomes as a list, and joins equal outcomes of consecutive calls: "1–2: 1 / 1, 3: waits
// / 1".
func formatOutcomes(nths []int, became []pairOutcome) string {
	var list []string
	for i := 0; i < len(became); {
		j := i + 1
		for j < len(became) && became[j].String() == became[i].String() {
			j++
		}
		if i == 0 && j == len(became) {
			return became[0].String()
		}
		at := fmt.Sprint(nths[i])
		if j > i+1 {
			at += fmt.Sprintf("–%d", nths[j-1])
		}
		list = append(list, at+": "+became[i].String())
		i = j
	}
	return strings.Join(list, ", ")
}

// firstErrorMessage returns the message of the first outcome with an error at one end.
func firstErrorMessage(became []pairOutcome) string {
	for _, o := range became {
		if strings.Trim(o.String(), "0serv /") != "" && o.says != "" {
			return fmt.Sprintf("%.120s", strings.NewReplacer("|", "\\|", "`", "'").Replace(o.says))
		}
	}
	return ""
}

// hangReasons explains why both ends of a program wait, or why an end crashes, after the failure of a verb. The
// explanations come from the source of each program.
var hangReasons = []struct {
	program string
	verbs   string // pattern of verbs
	why     string
}{
	{"rdma_server, rdma_client", "req_notify_cq",
		"`rdma_disconnect` of the failed end waits for the peer's answer; the peer waits for a completion and does not read " +
			"events of the connection meanwhile."},
	{"rping", "rdma_connect",
		"the client joins the completion thread, which never ends, because its queue pair was never connected."},
	{"rping", "req_notify_cq", "the completion thread ends without posting the semaphore that the main thread waits for."},
	{"(ucmatose|udaddy|mckey)", "reg_mr",
		"`create_message` frees the buffer and keeps the pointer; `destroy_node` then deregisters a region that does not exist."},
	{"ucmatose", "rdma_disconnect", "it ignores the result and waits for the DISCONNECTED event."},
	{"ucmatose", "rdma_accept",
		"the fourth call is librdmacm's own, at the client. The client knows of the failure and waits for the end of its other connection. The server " +
			"waits for the failed connection, for minutes, because the client has asked for time (MRA), as the kernel does."},
	{"cmtime", "(rdma_accept|rdma_bind_addr|rdma_listen|rdma_query_route)",
		"a server has no list of connections, but takes an entry from the list when it ends or when a connection has failed."},
	{"cmtime", "rdma_create_id",
		"as with `rdma_listen`; the client frees its list of connections and continues to use it."},
	{"cmtime", "rdma_disconnect", "neither end checks the result; the client waits for the DISCONNECTED event."},
	{"fi_pingpong -p verbs", "create_cq",
		"`fi_getinfo` creates a queue pair with the completion queue that was not created, and crashes; the signal handler that " +
			"the PSM library installs then waits for a lock."},
	{"qperf -cm 1 rc_lat", ".*",
		"this happens without a fault too, about once in 30 runs on a busy machine. Its timer interrupts `ibv_req_notify_cq`, which " +
			"fails with EINTR (docs/troubleshooting.md). The program then loses an event that it has to acknowledge, and `ibv_destroy_cq` waits for that."},
	{"ucx_perftest", "req_notify_cq",
		"the clean-up after a failed creation of an interface frees a part of it twice (`ib_iface.c`), and the C library aborts the program."},
	{"ib_write_bw -R", ".*",
		"a client that could not connect frees its identifier and uses it for the next attempt. A server that could not create its objects rejects " +
			"the connection with an identifier that it does not have yet."},
}

// hangReason returns the entry of hangReasons for a verb of a program, or "".
func hangReason(program, verb string) string {
	for _, w := range hangReasons {
		if regexp.MustCompile("^"+w.program+"$").MatchString(program) &&
			regexp.MustCompile("^"+w.verbs+"$").MatchString(verb) {
			return w.why
		}
	}
	return ""
}

// crashExitCodes lists the exit codes of a program killed by SIGSEGV or SIGABRT.
var crashExitCodes = []string{"139", "134"}

// maxFailedCalls limits the number of failed calls for each verb. Programs handle later calls in the same way.
const maxFailedCalls = 4

const verbFaultsHeader = `# Results: one verb fails, and the program's reaction

[failover-verbs.md](../failover-verbs.md) has the conclusions. ` + "`make verb-faults`" + ` writes this file.

Each verb that a program calls fails once, with ENOMEM, at each of its first four calls; see
[network.md](../network.md). The command is ` + "`verbena fault add --verb VERB --errno ENOMEM --nth N`" + `. The rule counts the
calls of server and client together. After each run the service held nothing of the program. After the last run the
program ran as before.

- calls: the number of calls in a run without a fault.
- exit codes: of the server, then of the client. "1–2:" means after a failure of the first or the second call.
- "waits": the end still waited for the other end shortly after that one had ended; the test then ended it. If both ends
  wait, neither had noticed within 10 seconds.
- "serves": the server accepts the next client.
- 139 and 134: the program crashed (SIGSEGV, SIGABRT). The reason for a crash, or for two waiting ends, follows the
  table.
- it says: the last message of the failed end.
`

// verbFaultState is an entry of `fault show --json` for a verb.
type verbFaultState struct {
	Seen, Hit int
	Verb      struct{ Verb string } `json:"verb_fault"`
}

func (w *testService) verbFaults() (list []verbFaultState) {
	w.t.Helper()
	mustUnmarshal(w, w.mustRun("fault", "show", "--json"), &list)
	return list
}

func mustUnmarshal(w *testService, text string, v any) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		w.t.Fatal(err)
	}
}
