//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"testing"
	"time"
)

// TestManyConnections tests two services on one host with a packet loss of 2 %. The test establishes and ends many
// connections at once, ROUNDS times, and checks that no objects remain. CI runs one round with a hundred
// connections.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	needProgram(t, "rdmacm-utils", "cmtime")
	rounds, many := soakRoundsOr(1), 100
	if rounds > 1 {
		many = 1000
	}
	u := testUsers()[0]
	there, here := unusedAddr(), unusedAddr()
	server := startService(t, u, "", "--link", "rxe0="+there)
	client := startService(t, u, "", "--link", "rxe0="+here)
	server.addFault("--drop", "2%", "--seed", "1")
	client.addFault("--drop", "2%", "--seed", "2")
	pair := cmPair{"cmtime", "cmtime", fmt.Sprintf("cmtime -s ADDR -c %d", many), false}
	for range rounds {
		begin := time.Now()
		out := pair.run(t, server, client, there)
		took := time.Since(begin)
		for _, step := range []string{"connect", "disconnect"} {
			if !regexp.MustCompile(`(?m)^` + step + ` `).MatchString(out) {
				t.Fatalf("cmtime: got no time for %s:\n%s", step, out)
			}
		}
		t.Logf("%d connections in %.1f s\n%s", many, took.Seconds(), out)
	}
	server.awaitNoCMObjects()
	client.awaitNoCMObjects()
	dropped := 0
	for _, r := range append(server.activeFaultRules(), client.activeFaultRules()...) {
		dropped += r.Dropped
	}
	t.Logf("%d packets lost", dropped)
	if dropped == 0 {
		t.Error("lost packets: got 0, want some")
	}
}
