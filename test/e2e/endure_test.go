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

	"verbena/internal/service"
)

// endurer is a process of testdata/endure.c, which goes on when its device is reset.
type endurer struct {
	cmd  *exec.Cmd
	errs bytes.Buffer
	over chan struct{} // closed when its output has ended

	mu     sync.Mutex
	ups    int // sessions that came to work
	ended  bool
	totals [3]int // sessions, completions, and of them flushed, at the end
}

func (e *endurer) read(r *bufio.Scanner) {
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

func (e *endurer) sessions() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ups
}

// TestEndure resets, and unplugs and plugs, a device at all the moments there are, under ten processes with sixty queue
// pairs, half of which sleep in completion channels. The processes live through it all, and each counts its work
// requests. make soak-reset sets how often.
func TestEndure(t *testing.T) {
	const processes, qps = 10, 6
	count := func(name string, short int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return short
	}
	resets, plugs := count("SOAK_RESETS", 60), count("SOAK_PLUGS", 20)
	program := compile(t, "endure")
	w := startService(t, users()[len(users())-1], "", "--link", "rxe0="+loopback())
	client, err := service.Dial(service.Location{Socket: w.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	do := func(r *service.Request) *service.Response {
		t.Helper()
		resp, err := client.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", r.Op, err)
		}
		return resp
	}
	reset := func(r service.DevReset) {
		t.Helper()
		r.Name = "rxe0"
		do(&service.Request{Op: service.OpDevReset, Reset: &r})
	}
	show := func() service.DevInfo { return do(&service.Request{Op: service.OpDevShow}).Devs[0] }
	w.out("run", "--", "true") // what the service makes once and for all, it then has made
	pid := w.serve.Process.Pid
	dir := runDirOf(t, pid)
	w.emptyWithin(5 * time.Second)
	before := footprintOf(t, pid, dir)

	var all []*endurer
	for i := range processes {
		e := &endurer{over: make(chan struct{}), cmd: w.cmd(t.Context(), "run", "--", program, strconv.Itoa(qps), []string{"poll", "wait"}[i%2])}
		e.cmd.Stderr = &e.errs
		out, err := e.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := e.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go e.read(bufio.NewScanner(out))
		all = append(all, e)
	}
	// up waits until each process has come to work since it had so many sessions.
	up := func(since []int) {
		t.Helper()
		deadline := time.Now().Add(2 * time.Minute)
		for i, e := range all {
			for e.sessions() <= since[i] {
				select {
				case <-e.over:
					t.Fatalf("process %d ended: %s", i, e.errs.String())
				case <-time.After(200 * time.Microsecond):
				}
				if time.Now().After(deadline) {
					syscall.Kill(pid, syscall.SIGQUIT)
					t.Fatalf("process %d does not come back: %+v, %v", i, show(), w.resources())
				}
			}
		}
	}
	sessions := func() (n []int) {
		for _, e := range all {
			n = append(n, e.sessions())
		}
		return n
	}
	up(make([]int, processes))
	var objects int
	for _, c := range do(&service.Request{Op: service.OpResShow}).Contexts {
		objects += len(c.QPs)
	}
	if objects < processes*qps {
		t.Errorf("under load are %d queue pairs", objects)
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
		since := sessions()
		if rnd.IntN(left[0]+left[1]) >= left[0] {
			left[1]--
			if left[1]%5 == 1 {
				do(&service.Request{Op: service.OpDevHang, Name: "rxe0"})
			}
			do(&service.Request{Op: service.OpDevUnplug, Name: "rxe0"})
			do(&service.Request{Op: service.OpDevPlug, Name: "rxe0"})
		} else {
			left[0]--
			done := show().Resets
			switch left[0] % 6 {
			case 1:
				reset(service.DevReset{AtWR: 1 + rnd.Uint64N(50)})
			case 2:
				reset(service.DevReset{At: service.DevCompletion})
			case 3:
				reset(service.DevReset{At: service.DevRegistration})
			case 4:
				reset(service.DevReset{Unreachable: true, Outage: time.Duration(1 + rnd.IntN(1_000_000))})
			case 5:
				do(&service.Request{Op: service.OpDevHang, Name: "rxe0"})
				fallthrough
			default:
				reset(service.DevReset{})
			}
			d := show()
			for deadline := time.Now().Add(time.Minute); d.Resets == done || d.State != "running"; d = show() {
				if time.Now().After(deadline) {
					t.Fatalf("the device does not come back: %+v", d)
				}
				time.Sleep(200 * time.Microsecond)
			}
			recoveries = append(recoveries, d.Recovery)
		}
		up(since)
		if (n+1)%500 == 0 {
			fmt.Printf("%d cycles in %v; service: %s\n", n+1, time.Since(began).Round(time.Second), memoryOf(pid))
		}
	}

	var totals [3]int
	for i, e := range all {
		// To the program: the launcher hands it on.
		if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		select {
		case <-e.over:
		case <-time.After(time.Minute):
			t.Fatalf("process %d does not end", i)
		}
		if err := e.cmd.Wait(); err != nil || !e.ended || e.errs.Len() > 0 {
			t.Errorf("process %d: %v: %s", i, err, e.errs.String())
		}
		for k := range totals {
			totals[k] += e.totals[k]
		}
	}
	w.emptyWithin(5 * time.Second)
	// The launchers' connections end a moment after them.
	after := footprintOf(t, pid, dir)
	for deadline := time.Now().Add(10 * time.Second); after != before && time.Now().Before(deadline); after = footprintOf(t, pid, dir) {
		time.Sleep(10 * time.Millisecond)
	}
	if after != before {
		t.Errorf("the service has %+v, and had %+v:\n%q", after, before, descriptorsOf(pid))
	}
	slices.Sort(recoveries)
	if n := len(recoveries); n > 0 {
		t.Logf("%d resets, %d unplugs in %v under %d processes, %d queue pairs: %d sessions, %d completions, %d of them flushed; "+
			"from the fatal event to a device: median %v, p99 %v, most %v; service: %s",
			resets-left[0], plugs-left[1], time.Since(began).Round(time.Second), processes, objects, totals[0], totals[1], totals[2],
			recoveries[n/2], recoveries[n*99/100], recoveries[n-1], memoryOf(pid))
	}
}
