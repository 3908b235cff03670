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
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/service"
)

// TestPortFlap: a program hears of its port's state, its queue pair runs out of retries while the port is down, and it
// connects anew; by the shortcut and by packets.
func TestPortFlap(t *testing.T) {
	t.Parallel()
	program := compile(t, "portflap")
	for _, args := range [][]string{nil, {"--wire"}} {
		w := startService(t, users()[len(users())-1], "", append([]string{"--link", "rxe0=" + loopback()}, args...)...)
		cmd := w.cmd(w.deadline(60), "run", "--", program)
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
				w.out("link", "set", "rxe0", "down")
			case "failed":
				w.out("link", "set", "rxe0", "up")
			}
		}
		if err := cmd.Wait(); err != nil || said != "ok" {
			t.Errorf("%v: %v, after %q\n%s", args, err, said, &stderr)
		}
		w.emptyWithin(5 * time.Second)
	}
}

// TestShapedFlaps: under a shaper and flaps of the port programs go on, or fail; killed ones leave nothing behind, and so do a
// reset, an unplug and a device that goes, with a full queue.
func TestShapedFlaps(t *testing.T) {
	t.Parallel()
	needProgram(t, "perftest", "ib_write_bw")
	addr := loopback()
	w := startService(t, users()[0], "", "--link", "rxe0="+addr, "--link", "rxe1="+loopback())
	flaps := 20
	if full {
		flaps = 1000
	}
	for _, end := range [][]string{{"link", "set", "rxe1", "--rate", "none"}, {"dev", "reset", "rxe1"}, {"dev", "unplug", "rxe1"},
		{"dev", "hang", "rxe1"}, {"link", "set", "rxe1", "down"}, {"link", "del", "rxe1"}} {
		w.out("link", "set", "rxe1", "--rate", "1Mbit", "--delay", "2s", "--queue", "1MB", "--ecn-threshold", "1KB")
		port := tcpPort()
		server := w.cmd(w.deadline(60), "run", "--", "ib_write_bw", "-d", "rxe0", "-x", "1", "-p", port, "-D", "30")
		client := w.cmd(w.deadline(60), "run", "--", "ib_write_bw", "-d", "rxe1", "-x", "1", "-p", port, "-D", "30", "127.0.0.1")
		for i, c := range []*exec.Cmd{server, client} {
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				w.out("wait", "--listen", port)
			}
		}
		for deadline := time.Now().Add(20 * time.Second); w.counter("rxe1", "sent_pkts") == 0 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		for range flaps {
			w.out("link", "set", "rxe0", "flap=1ms")
		}
		w.out(end...)
		for _, c := range []*exec.Cmd{server, client} {
			c.Process.Signal(syscall.SIGKILL)
			c.Wait()
		}
		w.emptyWithin(10 * time.Second)
		switch end[1] {
		case "unplug":
			w.out("dev", "plug", "rxe1")
		case "hang":
			w.out("dev", "reset", "rxe1")
		case "set":
			w.out("link", "set", "rxe1", "up")
		}
	}
	w.out("link", "add", "rxe1", "--addr", loopback())
	if _, err := w.pingpong("-n", "100"); err != nil {
		t.Error(err)
	}
	// The service ends with a full queue: see startService.
	w.out("link", "set", "rxe0", "--delay", "1m")
	p := w.cmd(w.deadline(60), "run", "--", "ibv_uc_pingpong", "-d", "rxe0", "-g", "1")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.Process.Kill()
	p.Wait()
}

// counter reads a counter of a device.
func (w *world) counter(dev, name string) (n int) {
	w.t.Helper()
	for l := range strings.Lines(w.out("stat", "show", "--dev", dev)) {
		if f := strings.Fields(l); len(f) == 3 && f[1] == name {
			n = atoi(f[2])
		}
	}
	return n
}

// faultyProgram is a program whose verbs are made to fail. With a client it is a server.
type faultyProgram struct {
	name           string
	server, client []string // the latter nil: there is none
	port           string   // flag
}

// faultyPrograms are those of the table in docs/failover-verbs.md; the first is the sample of CI.
var faultyPrograms = []faultyProgram{
	{"ibv_rc_pingpong -e", []string{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "10", "-e"}, []string{"127.0.0.1"}, "-p"},
	{"ibv_srq_pingpong", []string{"ibv_srq_pingpong", "-d", "rxe0", "-g", "1", "-n", "10"}, []string{"127.0.0.1"}, "-p"},
	{"ibv_ud_pingpong", []string{"ibv_ud_pingpong", "-d", "rxe0", "-g", "1", "-n", "10"}, []string{"127.0.0.1"}, "-p"},
	{"ibv_uc_pingpong", []string{"ibv_uc_pingpong", "-d", "rxe0", "-g", "1", "-n", "10"}, []string{"127.0.0.1"}, "-p"},
	{"ib_write_bw", []string{"ib_write_bw", "-d", "rxe0", "-x", "1", "-n", "10"}, []string{"127.0.0.1"}, "-p"},
	{"ib_send_lat -e", []string{"ib_send_lat", "-d", "rxe0", "-x", "1", "-n", "10", "-e"}, []string{"127.0.0.1"}, "-p"},
	{"ib_write_bw -R", []string{"ib_write_bw", "-d", "rxe0", "-x", "1", "-n", "10", "-R"}, []string{"127.0.0.1"}, "-p"},
	{"rdma_server, rdma_client", []string{"rdma_server"}, []string{"rdma_client", "-s", "127.0.0.1"}, "-p"},
	{"rping", []string{"rping", "-s", "-a", "127.0.0.1", "-C", "3"}, []string{"rping", "-c", "-a", "127.0.0.1", "-C", "3"}, "-p"},
	{"ucmatose", []string{"ucmatose", "-c", "2", "-C", "3"}, []string{"-s", "127.0.0.1"}, "-p"},
	{"ibv_devinfo", []string{"ibv_devinfo", "-v"}, nil, ""},
}

// outcome is what became of the ends of a run.
type outcome struct {
	server, client string // exit codes; "waits" of an end that did not end when the other had failed
	says           string // what the end that failed first said last
}

func (o outcome) String() string {
	if o.client == "" {
		return o.server
	}
	return o.server + " / " + o.client
}

// exits describes how a command ended.
func exits(err error) string {
	if err == nil {
		return "0"
	}
	if c := exitCode(err); c >= 0 {
		return fmt.Sprint(c)
	}
	return err.Error()
}

// lastWords returns the last line that says something.
func lastWords(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if changing.MatchString(last) {
		return "" // figures and numbers, and no error
	}
	return last
}

// changing matches what a program says that is another thing each time.
var changing = regexp.MustCompile(`0x|[0-9]\.[0-9]|usec|GID`)

// runFaulty runs a program to its end. What waits for an end that has failed is ended.
func runFaulty(w *world, p faultyProgram, stay time.Duration) (o outcome, hang bool) {
	ctx := w.deadline(60)
	type end struct {
		cmd  *exec.Cmd
		out  bytes.Buffer
		done chan error
	}
	port := tcpPort()
	start := func(args []string) *end {
		if p.port != "" {
			args = slices.Insert(slices.Clone(args), 1, p.port, port)
		}
		e := &end{cmd: w.cmd(ctx, append([]string{"run", "--"}, args...)...), done: make(chan error, 1)}
		e.cmd.Stdout, e.cmd.Stderr = &e.out, &e.out
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
			return exits(err)
		case <-time.After(d):
			return "waits"
		}
	}
	server := start(p.server)
	ends := []*end{server}
	if p.client != nil {
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) && await(server, 20*time.Millisecond) == "waits"; {
			if strings.HasPrefix(p.server[0], "r") || p.server[0] == "ucmatose" {
				time.Sleep(200 * time.Millisecond) // it listens at no TCP port
				break
			}
			if exec.Command(binary(w.t), "wait", "--listen", port, "--timeout", "100ms").Run() == nil {
				break
			}
		}
		args := p.client
		if !strings.HasPrefix(args[0], "r") { // it is what the client has beside the server's
			args = append(slices.Clone(p.server), args...)
		}
		ends = append(ends, start(args))
	}
	// The first end has its time; then the other has a moment.
	deadline := time.Now().Add(6 * time.Second)
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
	}
	for i, e := range ends {
		if codes[i] == "waits" {
			e.cmd.Process.Signal(syscall.SIGTERM)
			if await(e, 5*time.Second) == "waits" {
				e.cmd.Process.Kill()
				await(e, 5*time.Second)
			}
		}
	}
	o.server = codes[0]
	if len(codes) > 1 {
		o.client = codes[1]
	}
	if first >= 0 {
		o.says = lastWords(ends[first].out.String())
		for i, c := range codes {
			if c != "0" && c != "waits" {
				o.says = lastWords(ends[i].out.String())
				break
			}
		}
	}
	return o, first < 0
}

// TestVerbFaults: each verb that a program calls fails once, at each of its calls; the program ends, the service goes on and
// has nothing of it. In full it writes the table of docs/failover-verbs.md.
func TestVerbFaults(t *testing.T) {
	t.Parallel()
	programs := faultyPrograms[:1]
	write := os.Getenv("VERB_FAULTS") != ""
	if write {
		programs = faultyPrograms
	}
	tables := make([]string, len(programs))
	t.Cleanup(func() {
		if write && !t.Failed() {
			if err := os.WriteFile("../../docs/failover-verbs.md", []byte(verbFaultsHead+strings.Join(tables, "")), 0o644); err != nil {
				t.Error(err)
			}
		}
	})
	for i, p := range programs {
		t.Run(strings.ReplaceAll(p.name, " ", ""), func(t *testing.T) {
			t.Parallel()
			tables[i] = failEachVerb(t, p, write)
		})
	}
}

// failEachVerb has each verb that a program calls fail, at its first call or at each, and returns what comes of it.
func failEachVerb(t *testing.T, p faultyProgram, each bool) string {
	if _, err := exec.LookPath(p.server[0]); err != nil {
		need(t, false, p.server[0]+": apt-get install ibverbs-utils perftest rdmacm-utils")
	}
	w := startService(t, users()[0], "", "--link", "rxe0="+loopback())
	// Rules that do next to nothing count the calls.
	for _, v := range service.VerbNames() {
		w.out("fault", "add", "--verb", v, "--delay", "1ns")
	}
	clean, hang := runFaulty(w, p, 5*time.Second)
	if hang || clean.server != "0" || p.client != nil && clean.client != "0" {
		t.Fatalf("%s without faults: %v: %s", p.name, clean, clean.says)
	}
	calls := map[string]int{}
	for _, r := range w.verbFaults() {
		if r.Seen > 0 {
			calls[r.Verb.Verb] = r.Seen
		}
	}
	w.out("fault", "clear")
	if len(calls) < 4 {
		t.Fatalf("%s calls %v only", p.name, calls)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "\n## %s\n\n| verb | call | exit code | it says |\n|---|---|---|---|\n", p.name)
	for _, verb := range service.VerbNames() {
		n := calls[verb]
		if !each {
			n = min(n, 1)
		}
		for nth := 1; nth <= min(n, maxNth); nth++ {
			w.out("fault", "add", "--verb", verb, "--errno", "ENOMEM", "--nth", fmt.Sprint(nth))
			o, hang := runFaulty(w, p, 300*time.Millisecond)
			r := w.verbFaults()
			switch {
			case len(r) != 1 || r[0].Hit > 1 || r[0].Seen >= nth && r[0].Hit == 0:
				t.Errorf("%s, %s %d: the rule says %+v", p.name, verb, nth, r)
			case hang && !each:
				t.Errorf("%s, %s %d: neither end ends", p.name, verb, nth)
			}
			w.out("fault", "clear")
			w.emptyWithin(10 * time.Second)
			if r[0].Hit == 0 {
				continue // this time it took another course, and did not come to that call
			}
			says := strings.NewReplacer("|", "\\|", "`", "'").Replace(o.says)
			fmt.Fprintf(&table, "| %s | %d of %d | %v | %.100s |\n", verb, nth, calls[verb], o, says)
		}
	}
	// Nothing is left that would keep the program from running.
	if again, hang := runFaulty(w, p, 5*time.Second); hang || again.server != "0" || again.client != clean.client {
		t.Errorf("%s after the faults: %v: %s", p.name, again, again.says)
	}
	return table.String()
}

// maxNth bounds how many calls of one verb are made to fail: what programs do at the next ones they have done before.
const maxNth = 4

const verbFaultsHead = `# Verbs that fail: what programs make of it

Made by ` + "`make verb-faults`" + `. Each verb that a program calls is made to fail once, with ENOMEM, at each of its first four calls, those of
server and client counted together (` + "`verbena fault add --verb VERB --errno ENOMEM --nth N`" + `, see [network.md](network.md)). The exit codes are
those of the server and of the client; "waits" is an end that still waits for the other a moment after that has ended, and was then
ended. Where both wait, neither has noticed within 6 seconds. The last line of the end that failed is what it says.
`

// verbFaultState is a line of fault show --json about a verb.
type verbFaultState struct {
	Seen, Hit int
	Verb      struct{ Verb string } `json:"verb_fault"`
}

func (w *world) verbFaults() (list []verbFaultState) {
	w.t.Helper()
	unmarshal(w, w.out("fault", "show", "--json"), &list)
	return list
}

func unmarshal(w *world, text string, v any) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		w.t.Fatal(err)
	}
}
