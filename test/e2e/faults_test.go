//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// faultRuleState is an entry of `fault show --json`.
type faultRuleState struct {
	ID                                        int
	Dev                                       string
	Seen, Hit, Dropped, Duplicated, Corrupted int
	Delayed, Reordered                        int
	NotReady                                  int `json:"not_ready"`
}

func (w *testService) activeFaultRules() (list []faultRuleState) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.mustRun("fault", "show", "--json")), &list); err != nil {
		w.t.Fatal(err)
	}
	return list
}

// addFault adds a rule to rxe0 and returns its number.
func (w *testService) addFault(flags ...string) int {
	w.t.Helper()
	out := w.mustRun(append([]string{"fault", "add", "--dev", "rxe0"}, flags...)...)
	id, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		w.t.Fatalf("fault add: got output %q", out)
	}
	return id
}

// runPingpong runs a pair of ibv_rc_pingpong over rxe0. The programs check their data, and wait for events. Programs
// that poll would use processor time that the service needs.
func (w *testService) runPingpong(args ...string) (*programPair, error) {
	w.t.Helper()
	args = append([]string{"-d", "rxe0", "-g", "1", "-c", "-l", "7", "-e"}, args...)
	p := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: args, clArgs: args, timeout: 120}
	return p, p.runUnderLoss()
}

// TestEachFaultFlagHasEffect tests that each flag has its effect in a service that could use the shortcut, and that the
// programs complete.
func TestEachFaultFlagHasEffect(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	addr := unusedAddr()
	w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+addr)
	for _, c := range []struct {
		flags []string
		did   func(r faultRuleState) bool
	}{
		{[]string{"--drop", "1%"}, func(r faultRuleState) bool { return r.Dropped > 0 }},
		{[]string{"--drop", "0.3", "--limit", "40"}, func(r faultRuleState) bool { return r.Dropped > 0 && r.Dropped < 40 }},
		{[]string{"--drop", "100%", "--skip", "50", "--limit", "3"}, func(r faultRuleState) bool {
			return r.Dropped == 3 && r.Seen > 53
		}},
		{[]string{"--delay", "200us"}, func(r faultRuleState) bool { return r.Delayed == r.Seen && r.Seen > 0 }},
		{[]string{"--jitter", "300us"}, func(r faultRuleState) bool { return r.Delayed > 0 }},
		{[]string{"--duplicate", "5%"}, func(r faultRuleState) bool { return r.Duplicated > 0 }},
		{[]string{"--reorder", "2%"}, func(r faultRuleState) bool { return r.Reordered > 0 }},
		{[]string{"--corrupt", "1%"}, func(r faultRuleState) bool { return r.Corrupted > 0 }},
		{[]string{"--rnr", "20%"}, func(r faultRuleState) bool { return r.NotReady > 0 && r.NotReady < r.Seen }},
		{[]string{"--peer", addr, "--drop", "1%"}, func(r faultRuleState) bool { return r.Seen > 0 }},
		{[]string{"--peer", "192.0.2.1", "--stop"}, func(r faultRuleState) bool { return r.Seen == 0 }},
		{[]string{"--qp", "0xfffffe", "--drop", "100%"}, func(r faultRuleState) bool { return r.Seen == 0 }},
	} {
		t.Run(strings.Join(c.flags, " "), func(t *testing.T) {
			w := *w
			w.t = t
			id := w.addFault(c.flags...)
			if _, err := w.runPingpong("-s", "65536", "-n", "20"); err != nil {
				t.Fatal(err)
			}
			r := w.activeFaultRules()
			if len(r) != 1 || r[0].ID != id || r[0].Dev != "rxe0" || !c.did(r[0]) {
				t.Errorf("state of the rule: got %+v", r)
			}
			w.mustRun("fault", "clear", strconv.Itoa(id))
			if r := w.activeFaultRules(); len(r) != 0 {
				t.Errorf("rules left: %+v", r)
			}
		})
	}
}

// TestFaultSelectsByProperty tests that each property of a rule selects the packets of a program that has the property,
// and no packets of a program that does not.
func TestFaultSelectsByProperty(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	needProgram(t, "perftest", "ib_send_lat")
	addr := unusedAddr()
	w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+addr)
	type rule struct {
		flags []string
		seen  bool
	}
	check := func(name string, rules []rule, run func() error) {
		t.Helper()
		ids := map[int]rule{}
		for _, r := range rules {
			ids[w.addFault(append(r.flags, "--delay", "1us")...)] = r
		}
		if err := run(); err != nil {
			t.Errorf("%s: got %v, want success", name, err)
		}
		for _, r := range w.activeFaultRules() {
			if want := ids[r.ID]; (r.Seen > 0) != want.seen || r.Delayed != r.Seen {
				t.Errorf("%s, rule %q: got %d packets, %d delayed, want some: %v", name, want.flags, r.Seen, r.Delayed, want.seen)
			}
		}
		w.mustRun("fault", "clear")
	}
	check("ibv_rc_pingpong", []rule{
		{[]string{"--sl", "7"}, true}, {[]string{"--sl", "0"}, false}, {[]string{"--tclass", "3"}, true},
		{[]string{"--tclass", "106"}, false}, {[]string{"--gid", addr}, true}, {[]string{"--gid", "192.0.2.1"}, false},
		{[]string{"--qp-type", "rc"}, true}, {[]string{"--qp-type", "ud"}, false}, {[]string{"--pkey", "0x7fff"}, true},
		{[]string{"--pkey", "0x8001"}, false}, {[]string{"--sl", "7", "--qp-type", "rc", "--gid", addr}, true},
		{[]string{"--sl", "7", "--qp-type", "uc"}, false},
	}, func() error {
		_, err := w.runPingpong("-n", "100")
		return err
	})
	args := []string{"-d", "rxe0", "-x", "1", "-n", "100", "-c", "UD", "-S", "3", "--tclass", "106", "-e"}
	check("ib_send_lat", []rule{
		{[]string{"--tclass", "104"}, true}, {[]string{"--tclass", "0"}, false}, {[]string{"--sl", "3"}, true},
		{[]string{"--sl", "2"}, false}, {[]string{"--qp-type", "ud"}, true}, {[]string{"--qp-type", "rc"}, false},
	}, func() error {
		p := &programPair{program: "ib_send_lat", server: w, client: w, serverArgs: args, clArgs: args, timeout: 120}
		return p.runUnderLoss()
	})
	w.awaitNoProgramObjects()
}

// TestFaultStopMakesPeerDead tests that the peer appears dead under a rule with --stop.
func TestFaultStopMakesPeerDead(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	w.addFault("--stop", "--skip", "500")
	p, err := w.runPingpong("-s", "4096", "-n", "10000")
	if err == nil || !strings.Contains(p.serverOut+p.clientOut, "transport retry counter exceeded") {
		t.Errorf("%v\n%s%s", err, p.serverOut, p.clientOut)
	}
	w.mustRun("fault", "clear")
	if _, err := w.runPingpong("-n", "100"); err != nil {
		t.Error(err)
	}
}

// TestFaultSeedIsReproducible tests that a rule affects the same packets in each run with the same seed.
func TestFaultSeedIsReproducible(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	dropped := func(seed string) int {
		w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
		w.addFault("--drop", "20%", "--limit", "200", "--seed", seed)
		if _, err := w.runPingpong("-s", "16384", "-n", "100"); err != nil {
			t.Fatal(err)
		}
		r := w.activeFaultRules()[0]
		if r.Seen < 200 {
			t.Fatalf("packets seen by the rule: got %d, want at least 200", r.Seen)
		}
		return r.Dropped
	}
	a, b := dropped("42"), dropped("42")
	if a != b || a == 0 {
		t.Errorf("dropped packets: got %d of 200, and %d in the second run", a, b)
	}
}

// TestFaultAffectsOnlyItsQP tests that a rule for one queue pair does not affect other queue pairs.
func TestFaultAffectsOnlyItsQP(t *testing.T) {
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	port := unusedTCPPort()
	args := []string{"run", "--", "stdbuf", "-oL", "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-p", port}
	server := w.verbenaCommand(w.contextWithTimeout(60), args...)
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var serverErr bytes.Buffer
	server.Stderr = &serverErr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	m := regexp.MustCompile(`local address:.*QPN (0x[0-9a-f]+)`).FindStringSubmatch(first)
	if m == nil {
		t.Fatalf("first line of the server: got %q, %v", first, err)
	}
	w.addFault("--qp", m[1], "--drop", "100%")
	if _, err := w.runPingpong("-n", "100"); err != nil {
		t.Errorf("other queue pairs: %v", err)
	}
	b, err := w.verbenaCommand(w.contextWithTimeout(60), append(args, "127.0.0.1")...).CombinedOutput()
	server.Process.Signal(syscall.SIGTERM) // the server waits for a message at this point
	io.Copy(io.Discard, lines)
	server.Wait()
	if err == nil || !strings.Contains(string(b), "transport retry counter exceeded") {
		t.Errorf("the queue pair: %v\n%s%s", err, b, serverErr.String())
	}
	if r := w.activeFaultRules()[0]; r.Dropped == 0 {
		t.Errorf("state of the rule: got %+v", r)
	}
}
