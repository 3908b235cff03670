//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// endureProcess is a process of testdata/endure.c, which resumes its work after a reset of its device.
type endureProcess struct {
	cmd  *exec.Cmd
	errs bytes.Buffer
	over chan struct{} // closed at the end of the output

	mu     sync.Mutex
	ups    int // number of sessions with working connections
	ended  bool
	totals [3]int // sums at the end: sessions, completions and flushed completions
}

func (e *endureProcess) readOutput(r *bufio.Scanner) {
	defer close(e.over)
	for r.Scan() {
		e.mu.Lock()
		if r.Text() == "up" {
			e.ups++
		} else if n, _ := fmt.Sscanf(r.Text(), "ended %d %d %d", &e.totals[0], &e.totals[1], &e.totals[2]); n == 3 {
			e.ended = true
		}
		e.mu.Unlock()
	}
}

func (e *endureProcess) countSessions() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ups
}

func (e *endureProcess) hasEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// endureProcesses is a set of processes on one device of a service.
type endureProcesses struct {
	t      *testing.T
	w      *testService
	client *ctl.Client
	all    []*endureProcess
}

// startEndureProcesses starts n processes with qps queue pairs each. The processes wait for completions in the ways
// listed in modes, in rotation.
func startEndureProcesses(t *testing.T, w *testService, client *ctl.Client, n, qps int,
	modes ...string) *endureProcesses {
	t.Helper()
	program := buildWithLibibverbs(t, "endure")
	s := &endureProcesses{t: t, w: w, client: client}
	for i := range n {
		e := &endureProcess{over: make(chan struct{}), cmd: w.verbenaCommand(t.Context(), "run", "--", program,
			strconv.Itoa(qps),
			modes[i%len(modes)])}
		e.cmd.Stderr = &e.errs
		out, err := e.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := e.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go e.readOutput(bufio.NewScanner(out))
		s.all = append(s.all, e)
	}
	s.awaitNewSessions(make([]int, n))
	return s
}

// awaitNewSessions waits until each process has started more sessions than in since.
func (s *endureProcesses) awaitNewSessions(since []int) {
	s.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for i, e := range s.all {
		for e.countSessions() <= since[i] {
			select {
			case <-e.over:
				s.t.Fatalf("process %d ended: %s", i, e.errs.String())
			case <-time.After(200 * time.Microsecond):
			}
			if time.Now().After(deadline) {
				s.w.serve.Process.Signal(syscall.SIGQUIT)
				s.t.Fatalf("process %d: does not resume: %+v, %v", i, s.deviceInfo(), s.w.listOpenContexts())
			}
		}
	}
}

func (s *endureProcesses) sessionCounts() (n []int) {
	for _, e := range s.all {
		n = append(n, e.countSessions())
	}
	return n
}

func (s *endureProcesses) sendRequest(r *ctl.Request) *ctl.Response {
	s.t.Helper()
	resp, err := s.client.Do(r)
	if err != nil {
		s.t.Fatalf("%s: %v", r.Op, err)
	}
	return resp
}

func (s *endureProcesses) deviceInfo() ctl.DevInfo {
	s.t.Helper()
	return s.sendRequest(&ctl.Request{Op: ctl.OpDevShow}).Devs[0]
}

// resetDevice resets the device, waits until it works again, and returns the duration.
func (s *endureProcesses) resetDevice(r ctl.DevReset) time.Duration {
	s.t.Helper()
	before := s.deviceInfo().Resets
	r.Name = "rxe0"
	s.sendRequest(&ctl.Request{Op: ctl.OpDevReset, Reset: &r})
	var d ctl.DevInfo
	if !testutil.PollUntil(func() bool {
		d = s.deviceInfo()
		return d.Resets > before && d.State == "running"
	}) {
		s.t.Fatalf("device: does not recover: %+v", d)
	}
	return d.Recovery
}

func (s *endureProcesses) countQueuePairs() (n int) {
	s.t.Helper()
	for _, c := range s.sendRequest(&ctl.Request{Op: ctl.OpResShow}).Contexts {
		n += len(c.QPs)
	}
	return n
}

// endAll ends the processes and returns the sums of their sessions, completions and flushed completions.
func (s *endureProcesses) endAll() (totals [3]int) {
	s.t.Helper()
	for _, e := range s.all {
		_ = e.cmd.Process.Signal(syscall.SIGTERM)
	}
	for i, e := range s.all {
		for deadline, over := time.Now().Add(time.Minute), false; !over; {
			// The launcher forwards the signal to the program. The test repeats the signal, because the program may
			// be about to sleep.
			if !e.hasEnded() {
				_ = e.cmd.Process.Signal(syscall.SIGTERM)
			}
			select {
			case <-e.over:
				over = true
			case <-time.After(100 * time.Millisecond):
				if time.Now().After(deadline) {
					s.t.Fatalf("process %d: does not end", i)
				}
			}
		}
		err := e.cmd.Wait()
		if e.ended && err != nil && err.Error() == "signal: terminated" {
			err = nil // a repeated signal has reached the launcher while it was about to exit
		}
		if err != nil || !e.ended || e.errs.Len() > 0 {
			s.t.Errorf("process %d: %v: %s", i, err, e.errs.String())
		}
		for k := range totals {
			totals[k] += e.totals[k]
		}
	}
	s.w.awaitNoProgramObjects()
	return totals
}

// envInt returns the number in an environment variable, or the value otherwise if the variable is empty.
func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func dialControl(t *testing.T, w *testService) *ctl.Client {
	t.Helper()
	client, err := ctl.Dial(w.location())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestEndure resets and unplugs a device at random moments, while ten processes use sixty queue pairs, half of
// which sleep in completion channels. The processes must survive every reset and receive a completion for each work
// request. `make soak-reset` sets the number of cycles.
func TestEndure(t *testing.T) {
	t.Parallel()
	const processes, qps = 10, 6
	resets, plugs := envInt("SOAK_RESETS", 40), envInt("SOAK_PLUGS", 15)
	w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
	w.mustRun("run", "--", "true") // the service then has allocated its long-lived resources
	w.awaitNoProgramObjects()
	client := dialControl(t, w)
	if _, err := client.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil { // the service has accepted the connection
		t.Fatal(err)
	}
	pid := w.serve.Process.Pid
	dir := runDirOf(t, pid)
	before, had := measureRestingFootprint(t, pid, dir), descriptorsOf(pid)
	s := startEndureProcesses(t, w, client, processes, qps, "poll", "wait")
	objects := s.countQueuePairs()
	if objects < processes*qps {
		t.Errorf("queue pairs under load: got %d", objects)
	}

	rnd := rand.New(rand.NewPCG(uint64(resets), uint64(plugs)))
	left := [2]int{resets, plugs}
	var recoveries []time.Duration
	began := time.Now()
	limit, err := time.ParseDuration(os.Getenv("SOAK_TIME"))
	if err != nil {
		limit = 1 << 62
	}
	for n := 0; left[0]+left[1] > 0 && time.Since(began) < limit; n++ {
		since := s.sessionCounts()
		if rnd.IntN(left[0]+left[1]) >= left[0] {
			left[1]--
			if left[1]%5 == 1 {
				s.sendRequest(&ctl.Request{Op: ctl.OpDevHang, Name: "rxe0"})
			}
			s.sendRequest(&ctl.Request{Op: ctl.OpDevUnplug, Name: "rxe0"})
			s.sendRequest(&ctl.Request{Op: ctl.OpDevPlug, Name: "rxe0"})
		} else {
			left[0]--
			var how ctl.DevReset
			switch left[0] % 6 {
			case 1:
				how.AtWR = 1 + rnd.Uint64N(50)
			case 2:
				how.At = ctl.DevCompletion
			case 3:
				how.At = ctl.DevRegistration
			case 4:
				how.Unreachable, how.Outage = true, time.Duration(1+rnd.IntN(1_000_000))
			case 5:
				s.sendRequest(&ctl.Request{Op: ctl.OpDevHang, Name: "rxe0"})
			}
			recoveries = append(recoveries, s.resetDevice(how))
		}
		s.awaitNewSessions(since)
		if (n+1)%500 == 0 {
			fmt.Printf("%d cycles in %v; service: %s\n", n+1, time.Since(began).Round(time.Second), describeMemoryOf(pid))
		}
	}

	totals := s.endAll()
	// The service closes the connection of a launcher shortly after the launcher has ended.
	after := measureFootprint(t, pid, dir)
	if !testutil.PollUntil(func() bool { after = measureFootprint(t, pid, dir); return !after.exceeds(before) }) {
		t.Errorf("footprint of the service: got %+v, had %+v before:\n%q\n%q", after, before, descriptorsOf(pid), had)
	}
	slices.Sort(recoveries)
	if n := len(recoveries); n > 0 {
		t.Logf("%d resets, %d unplugs in %v with %d processes, %d queue pairs: %d sessions, %d completions, %d of them flushed; "+
			"from the fatal event to a device: median %v, p99 %v, most %v; service: %s",
			resets-left[0], plugs-left[1], time.Since(began).Round(
				time.Second), processes, objects, totals[0], totals[1], totals[2],
			recoveries[n/2], recoveries[n*99/100], recoveries[n-1], describeMemoryOf(pid))
	}
}

// TestRecoveryTimes resets a device with queue pairs in real processes, each with an outstanding receive, and logs
// the duration of the recovery. RECOVERIES sets the number of resets, and adds the case of ten thousand queue
// pairs.
func TestRecoveryTimes(t *testing.T) {
	resets := envInt("RECOVERIES", 5)
	for _, qps := range []int{1, 100, 10000} {
		if qps == 10000 && os.Getenv("RECOVERIES") == "" {
			continue
		}
		t.Run(strconv.Itoa(qps), func(t *testing.T) {
			w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
			n := min(qps, 10)
			s := startEndureProcesses(t, w, dialControl(t, w), n, qps/n, "idle")
			if got := s.countQueuePairs(); got != qps {
				t.Errorf("queue pairs: got %d", got)
			}
			var times []time.Duration
			for range resets {
				since := s.sessionCounts()
				times = append(times, s.resetDevice(ctl.DevReset{}))
				s.awaitNewSessions(since)
			}
			if totals := s.endAll(); totals[2] < qps*resets {
				t.Errorf("flushed receives: got %d, want more", totals[2])
			}
			slices.Sort(times)
			t.Logf("from the fatal event to a recovered device, with %d queue pairs of %d processes, %d times: median %v, p99 %v", qps, n,
				resets,
				times[len(times)/2], times[len(times)*99/100])
		})
	}
}
