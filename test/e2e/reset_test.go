//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// firstDevice returns the first device.
func (w *testService) firstDevice() ctl.DevInfo {
	w.t.Helper()
	list := w.sendRequest(&ctl.Request{Op: ctl.OpDevShow}).Devs
	if len(list) == 0 {
		w.t.Fatal("service: got no device")
	}
	return list[0]
}

// checkNoQueueFiles fails the test if a service still has queue files of ended programs.
func checkNoQueueFiles(t *testing.T, service int) {
	t.Helper()
	testutil.Eventually(t, "the queue files of ended programs to be closed", func() bool {
		return !slices.ContainsFunc(descriptorsOf(service), func(to string) bool {
			return strings.HasPrefix(to, "/memfd:/dev/shm/verbena-")
		})
	})
}

// TestResetEndsPrograms tests that programs without support for resets end with an error within seconds after their
// device is reset or unplugged. The programs must leave no objects, and later programs must work.
func TestResetEndsPrograms(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong", "ibv_asyncwatch")
	needProgram(t, "perftest", "ib_send_bw")
	u := testUsers()[len(testUsers())-1]
	programs := []struct {
		name  string
		args  []string
		waits bool // the program waits for completions in a channel
	}{
		{"ibv_rc_pingpong", []string{"-d", "rxe0", "-g", "1", "-n", "100000000"}, false},
		{"ibv_rc_pingpong", []string{"-d", "rxe0", "-g", "1", "-n", "100000000", "-e"}, true},
		{"ib_send_bw", []string{"-d", "rxe0", "-x", "1", "-F", "-D", "50"}, false},
		{"ib_send_bw", []string{"-d", "rxe0", "-x", "1", "-F", "-n", "5000000", "-e"}, true}, // -D cannot be combined with -e
	}
	for i, fail := range []struct {
		do    [][]string
		after []string // commands after which the device works again
		waits bool     // applies only to programs that wait for completions
	}{
		{do: [][]string{{"reset", "rxe0"}}},
		{do: [][]string{{"reset", "rxe0", "--unreachable=300ms"}}},
		{do: [][]string{{"reset", "rxe0", "--unreachable"}}, after: []string{"plug", "rxe0"}},
		{do: [][]string{{"unplug", "rxe0"}}, after: []string{"plug", "rxe0"}},
		{do: [][]string{{"hang", "rxe0"}, {"reset", "rxe0"}}},
		{do: [][]string{{"reset", "rxe0", "--at-wr", "100"}}},
		{do: [][]string{{"reset", "rxe0", "--at", "registration"}}},
		{do: [][]string{{"reset", "rxe0", "--at", "completion"}}, waits: true},
	} {
		for k, p := range programs {
			if fail.waits && !p.waits || !fullMatrix && (i+k)%2 == 1 && i > 0 {
				continue
			}
			t.Run(strings.Join(fail.do[0], " ")+"/"+p.name+strings.Join(p.args[len(p.args)-1:], ""), func(t *testing.T) {
				t.Parallel()
				w := startService(t, u, "", "--link", "rxe0="+unusedAddr())
				server, client := startConnectedPair(t, w, p.name, p.args)
				watch := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "ibv_asyncwatch", "-d", "rxe0")
				var seen bytes.Buffer
				watch.Stdout, watch.Stderr = &seen, &seen
				if err := watch.Start(); err != nil {
					t.Fatal(err)
				}
				testutil.PollUntil(func() bool { return w.firstDevice().Contexts == 3 })
				for _, args := range fail.do {
					w.mustRun(append([]string{"dev"}, args...)...)
				}
				for name, c := range map[string]*exec.Cmd{"server": server, "client": client, "ibv_asyncwatch": watch} {
					if code := waitForExitWithin(t, name, c, 30*time.Second); code == 0 || code >= 125 {
						t.Errorf("%s: exit code %d\n%v%v", name, code, c.Stdout, c.Stderr)
					}
				}
				if !strings.Contains(seen.String(), "IBV_EVENT_DEVICE_FATAL") {
					t.Errorf("ibv_asyncwatch: got no fatal event:\n%s", seen.String())
				}
				if fail.after != nil {
					w.mustRun(append([]string{"dev"}, fail.after...)...)
				}
				w.awaitNoProgramObjects()
				checkNoQueueFiles(t, w.serve.Process.Pid)
				testutil.PollUntil(func() bool { return w.firstDevice().State == "running" })
				args := []string{"-d", "rxe0", "-g", "1", "-c"}
				again := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: args, clArgs: args}
				if err := again.run(); err != nil {
					t.Errorf("exchange on the recovered device: %v", err)
				}
			})
		}
	}
}

const zombieScript = `
import sys, errno
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.cq import CQ, CompChannel
from pyverbs.qp import QP, QPCap, QPInitAttr, QPAttr
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
import pyverbs.enums as e

ctx = Context(name='rxe0')
pd = PD(ctx)
channel = CompChannel(ctx)
cq = CQ(ctx, 10, None, channel)
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4)))
print('ready', flush=True)
sys.stdin.readline()              # the device has been reset

event = ctx.get_async_event()
print('event', event.event_type == e.IBV_EVENT_DEVICE_FATAL)
event.ack()

def refused(what, f):
    try:
        f()
        print(what, 'worked')
    except PyverbsRDMAError as x:
        print(what, errno.errorcode.get(x.error_code, x.error_code))

refused('query_device', ctx.query_device)
refused('alloc_pd', lambda: PD(ctx))
refused('reg_mr', lambda: MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE))
refused('create_cq', lambda: CQ(ctx, 10))
refused('query_qp', lambda: qp.query(e.IBV_QP_STATE))
print('zombie', flush=True)
sys.stdin.readline()              # another process works on the recovered device

new = Context(name='rxe0')        # and so may this one, beside its zombie
print('new', new.query_device().phys_port_cnt)
new.close()
for o in qp, mr, cq, channel, pd, ctx:
    o.close()
print('closed', flush=True)
sys.stdin.readline()
`

// TestCommandsReturnDuringOutage tests commands while the hardware does not answer, including an outage that begins
// during a registration. Each command must return at once, with success or with an error that names the cause.
func TestCommandsReturnDuringOutage(t *testing.T) {
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	refused := func(why string, args ...string) {
		t.Helper()
		if out, err := w.verbenaCommand(w.contextWithTimeout(20), args...).CombinedOutput(); err == nil ||
			!strings.Contains(string(out), why) {
			t.Errorf("verbena %v: %v: %s", args, err, out)
		}
	}
	for _, at := range [][]string{nil, {"--at=registration"}} {
		w.mustRun(append([]string{"dev", "reset", "rxe0", "--unreachable"}, at...)...)
		testutil.Eventually(t, "the device to be gone", func() bool {
			d := w.firstDevice()
			return d.Device == "gone" && d.State == "recovering" && d.Hardware == "unreachable" // the outage may begin later
		})
		refused("verbena dev plug rxe0", "dev", "reset", "rxe0")
		w.mustRun("dev", "unplug", "rxe0")
		refused("not plugged in", "dev", "unplug", "rxe0")
		w.mustRun("dev", "plug", "rxe0")
		if d := w.firstDevice(); d.State != "running" {
			t.Errorf("device after dev plug: got %+v", d)
		}
	}
	// An outage that was ended by a command must not affect the next outage.
	short := w.verbenaCommand(w.contextWithTimeout(20), "dev", "reset", "rxe0", "--unreachable=500ms")
	if err := short.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the device to recover", func() bool { return w.firstDevice().State == "recovering" })
	w.mustRun("dev", "plug", "rxe0")
	if err := short.Wait(); err != nil {
		t.Error(err)
	}
	w.mustRun("dev", "reset", "rxe0", "--unreachable")
	testutil.Consistently(t, 600*time.Millisecond, "recovering, beyond the time of an earlier outage", func() bool {
		return w.firstDevice().State == "recovering"
	})
	w.mustRun("dev", "plug", "rxe0")
	w.mustRun("dev", "reset", "rxe0", "--unreachable", "--at=registration")
	w.mustRun("link", "del", "rxe0")
}

// TestZombieKeepsOldDevice tests a process that keeps the objects of the old device, while this process and others use
// the recovered device.
func TestZombieKeepsOldDevice(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	const python = "/usr/bin/python3"
	needCondition(t, exec.Command(python, "-c", "import pyverbs.device").Run() == nil,
		"python3-pyverbs: scripts/deps installs it")
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			w := startService(t, u, "", "--link", "rxe0="+unusedAddr())
			c := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", python, "-c", zombieScript)
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out := &lineWriter{ch: make(chan string, 100)}
			c.Stdout, c.Stderr = out, out
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			until := func(last string) (got []string) {
				t.Helper()
				for {
					select {
					case l := <-out.ch:
						if l == last {
							return got
						}
						got = append(got, l)
					case <-time.After(30 * time.Second):
						t.Fatalf("program: got no %q: %q", last, got)
					}
				}
			}
			until("ready")
			w.mustRun("dev", "reset", "rxe0")
			in.Write([]byte("\n"))
			want := []string{"event True", "query_device EIO", "alloc_pd EIO", "reg_mr EIO", "create_cq EIO", "query_qp EIO"}
			if got := until("zombie"); strings.Join(got, ",") != strings.Join(want, ",") {
				t.Errorf("zombie: got %q, want %q", got, want)
			}
			if d := w.firstDevice(); d.Zombies != 1 || d.Contexts != 0 || d.Resets != 1 {
				t.Errorf("dev show: %+v", d)
			}
			if r := w.listOpenContexts(); len(r) != 1 || !r[0].Zombie {
				t.Errorf("res show: %v", r)
			}
			args := []string{"-d", "rxe0", "-g", "1", "-c"}
			other := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: args, clArgs: args}
			if err := other.run(); err != nil {
				t.Errorf("pingpong while the zombie exists: %v", err)
			}
			in.Write([]byte("\n"))
			if got := until("closed"); strings.Join(got, ",") != "new 1" {
				t.Errorf("last output: got %q", got)
			}
			w.awaitNoProgramObjects()
			checkNoQueueFiles(t, w.serve.Process.Pid)
			in.Write([]byte("\n"))
			if code := waitForExitWithin(t, "the program", c, 20*time.Second); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// lineWriter delivers the written data line by line.
type lineWriter struct {
	ch   chan string
	rest string
}

func (l *lineWriter) Write(b []byte) (int, error) {
	l.rest += string(b)
	for {
		line, rest, ok := strings.Cut(l.rest, "\n")
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		select {
		case l.ch <- line:
		default:
		}
	}
}

// TestSoakReset resets and unplugs the device repeatedly, while ten real processes use it. Each process must end
// with an error, and the test then starts another one. `make soak-reset` sets the number of cycles.
func TestSoakReset(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	count := func(name string) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return 1
	}
	resets, plugs := count("SOAK_RESETS"), count("SOAK_PLUGS")
	const pairs = 5
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for n := range resets + plugs {
		var all []*exec.Cmd
		for i := range pairs {
			port := unusedTCPPort()
			args := []string{"run", "--", "ibv_rc_pingpong", "-p", port, "-d", "rxe0", "-g", "1", "-n", "100000000"}
			if i%2 == 1 {
				args = append(args, "-e")
			}
			server := w.verbenaCommand(w.contextWithTimeout(120), args...)
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			(&programPair{server: w, port: port}).awaitListening(make(chan error, 1))
			client := w.verbenaCommand(w.contextWithTimeout(120), append(args, "127.0.0.1")...)
			if err := client.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, server, client)
		}
		running := 0
		if !testutil.PollUntil(func() bool {
			running = 0
			for _, r := range w.listOpenContexts() {
				if hasConnectedQP(r) {
					running++
				}
			}
			return running == 2*pairs
		}) {
			t.Fatalf("running programs: got only %d", running)
		}
		if n%2 == 0 && n/2 < resets || n >= 2*plugs {
			w.mustRun("dev", "reset", "rxe0")
		} else {
			w.mustRun("dev", "unplug", "rxe0")
			w.mustRun("dev", "plug", "rxe0")
		}
		for i, c := range all {
			if code := waitForExitWithin(t, "program "+strconv.Itoa(i), c, 30*time.Second); code == 0 {
				t.Errorf("cycle %d: program %d: got exit code 0, want an error", n, i)
			}
		}
		w.awaitNoProgramObjects()
		if t.Failed() {
			return
		}
	}
	checkNoQueueFiles(t, w.serve.Process.Pid)
	t.Logf("%d resets, %d unplugs with %d processes", resets, plugs, 2*pairs)
}

// noFlushScript posts a receive, and prints the receive's completion after a reset of the device.
const noFlushScript = `
import sys, time
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.qp import QP, QPCap, QPInitAttr, QPAttr
from pyverbs.wr import RecvWR, SGE
import pyverbs.enums as e

ctx = Context(name='rxe0')
pd = PD(ctx)
cq = CQ(ctx, 10)
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4)))
attr = QPAttr(port_num=1)
attr.qp_state = e.IBV_QPS_INIT
qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)
qp.post_recv(RecvWR(7, 1, [SGE(mr.buf, 64, mr.lkey)]))
print('ready', flush=True)
sys.stdin.readline()              # the device has been reset
event = ctx.get_async_event()
print('event', event.event_type == e.IBV_EVENT_DEVICE_FATAL)
event.ack()
time.sleep(0.3)
n, wcs = cq.poll(1)
print('completions', n, *(e.IBV_WC_WR_FLUSH_ERR == w.status for w in wcs))
for o in qp, mr, cq, pd, ctx:
    o.close()
`

// TestNoFlushDiscardsRequests tests that a reset flushes outstanding work requests, or with --no-flush discards them as
// the kernel's rxe does.
func TestNoFlushDiscardsRequests(t *testing.T) {
	t.Parallel()
	const python = "/usr/bin/python3"
	needCondition(t, exec.Command(python, "-c", "import pyverbs.device").Run() == nil,
		"python3-pyverbs: scripts/deps installs it")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"dev", "reset", "rxe0"}, "event True\ncompletions 1 True\n"},
		{[]string{"dev", "reset", "rxe0", "--no-flush"}, "event True\ncompletions 0\n"},
	} {
		cmd := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", python, "-c", noFlushScript)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		read := bufio.NewReader(out)
		if line, err := read.ReadString('\n'); line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		w.mustRun(c.args...)
		fmt.Fprintln(in)
		rest, err := io.ReadAll(read)
		if err != nil || string(rest) != c.want {
			t.Errorf("%v: got %q, %v, want %q", c.args, rest, err, c.want)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
