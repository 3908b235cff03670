//go:build e2e

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"verbena/internal/testutil"
)

// TestAttackFloods tests floods of connections, descriptors and unread answers by one user. Another user's round
// trips must not be slower than beside any other busy program, and no resources may remain in the service. With
// ATTACK_FULL the test measures the round trips, which requires an otherwise idle machine. Without it the test only
// runs the floods.
func TestAttackFloods(t *testing.T) {
	needProgram(t, "perftest", "ib_send_lat")
	s := startAttackedService(t)
	s.neighbour.kill() // no other program may run during the measurement
	<-s.neighbour.over
	rest, goroutines := s.readLoad(), s.countGoroutines()
	undisturbed := s.measureRoundTripP99()
	t.Logf("undisturbed: p99 %.1f us", undisturbed)
	for _, kind := range []string{"spin", "connections", "descriptors", "answers"} {
		a := s.startAttackOutside(attacker, "flood", s.socket, strconv.Itoa(shortOrFullCount(3, 20)), kind)
		a.expectLine("begun")
		p99 := s.measureRoundTripP99()
		t.Logf("%s: p99 %.1f us, %.2f times; %s", kind, p99, p99/undisturbed, a.nextLineWith("rounds", time.Minute))
		if fullAttacks && kind != "spin" && p99 > 3*undisturbed {
			t.Errorf("%s: p99 %.1f us, undisturbed %.1f us", kind, p99, undisturbed)
		}
		<-a.over
	}
	if !testutil.PollUntil(func() bool {
		return s.readLoad().descriptors <= rest.descriptors && s.countGoroutines() <= goroutines+10
	}) {
		t.Errorf("after the attack: %d goroutines and %+v, want at most %d and %+v, as before\n%q", s.countGoroutines(),
			s.readLoad(), goroutines, rest, descriptorsOf(s.serve.Process.Pid))
	}
	s.checkServesNewUser()
}

// measureRoundTripP99 measures round trips between two programs of a user, while no other programs run.
// measureRoundTripP99 returns the 99th percentile of half a round trip in microseconds.
func (s *attackedService) measureRoundTripP99() float64 {
	s.t.Helper()
	const measured = neighbor - 10
	port := unusedTCPPort()
	args := []string{"run", "--", "ib_send_lat", "-e", "-d", "rxe0", "-x", "1", "-s", "64", "-n",
		strconv.Itoa(shortOrFullCount(1000, 20000)), "-p", port, "-F"}
	server := s.asUser(measured).verbenaCommand(s.contextWithTimeout(60), args...)
	d := startInteractiveProgram(s.t, server)
	defer func() { <-d.over }()
	if out, err := s.verbenaCommand(s.contextWithTimeout(40), "wait", "--listen", port).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s; the server printed %q", err, out, d.lastLines(time.Second))
	}
	out, err := s.asUser(measured).verbenaCommand(s.contextWithTimeout(60), append(args, "127.0.0.1")...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("ib_send_lat: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 9 && f[0] == "64" {
			v, err := strconv.ParseFloat(f[7], 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return v
		}
	}
	s.t.Fatalf("ib_send_lat: got no percentile:\n%s", out)
	return 0
}
