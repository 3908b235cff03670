//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

var netNSCounter atomic.Uint32

// newNetNSName returns an unused name for a network namespace.
func newNetNSName() string { return fmt.Sprintf("verbena-%d-%d", os.Getpid(), netNSCounter.Add(1)) }

// newNetNS creates a network namespace with an interface veth0 with the addresses 10.66.0.1 and fd66::1. No test uses
// the peer interface. newNetNS returns the name of the namespace and a function that runs `ip` in it.
func newNetNS(t *testing.T) (ns string, ip func(args ...string)) {
	t.Helper()
	needRoot(t)
	needProgram(t, "iproute2", "ip")
	ns = newNetNSName()
	ip = func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", append([]string{"-n", ns}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v\n%s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
	ip("link", "set", "lo", "up")
	ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
	ip("link", "set", "veth0", "addrgenmode", "none") // prevents a link-local address
	ip("addr", "add", "10.66.0.1/32", "dev", "veth0")
	ip("addr", "add", "fd66::1/128", "dev", "veth0", "nodad")
	ip("link", "set", "veth1", "up")
	ip("link", "set", "veth0", "mtu", "4200", "up")
	return ns, ip
}

// TestInterfaceChangesRaiseEvents tests that an unmodified program gets an asynchronous event for each change of the
// interface. The GID table, the port and its MTU must follow the change.
func TestInterfaceChangesRaiseEvents(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_asyncwatch", "ibv_devinfo")
	ns, ip := newNetNS(t)
	w := startService(t, testUsers()[0], ns, "--link", "rxe0=veth0")
	watch := w.verbenaCommand(w.contextWithTimeout(120), "run", "--", "stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0")
	var out testutil.Buffer
	watch.Stdout, watch.Stderr = &out, &out
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "ibv_asyncwatch watches", func() bool {
		return strings.Contains(out.String(), "async event FD")
	})
	seen := 0
	event := regexp.MustCompile(`event_type (IBV_EVENT_\w+) \(\d+\), port 1`)
	step := func(want []string, gids []string, state string, mtu int, args ...string) {
		t.Helper()
		ip(args...)
		var got []string
		testutil.Eventually(t, fmt.Sprintf("ip %v makes %v, not %v", args, want, got), func() bool {
			got = nil
			for _, m := range event.FindAllStringSubmatch(out.String(), -1)[seen:] {
				got = append(got, m[1])
			}
			return len(got) >= len(want)
		})
		if !slices.Equal(got, want) {
			t.Errorf("events after ip %v: got %v, want %v", args, got, want)
		}
		seen += len(got)
		info := w.mustRun("run", "--", "ibv_devinfo", "-v", "-d", "rxe0")
		table := map[string]string{}
		for _, m := range regexp.MustCompile(`GID\[\s*(\d+)\]:\s+(\S+), RoCE v2`).FindAllStringSubmatch(info, -1) {
			table[m[1]] = m[2]
		}
		for i, g := range gids {
			if table[fmt.Sprint(i+1)] != g {
				t.Errorf("GID after ip %v: GID %d: got %q, want %q", args, i+1, table[fmt.Sprint(i+1)], g)
			}
		}
		if want := 1 + len(gids) - countEqual(gids, ""); len(table) != want {
			t.Errorf("GIDs after ip %v: got %v, want %d of them", args, table, want)
		}
		for _, re := range []string{`state:\s+` + state + ` `, fmt.Sprintf(`active_mtu:\s+%d `, mtu)} {
			if !regexp.MustCompile(re).MatchString(info) {
				t.Errorf("after ip %v: ibv_devinfo: no match for %s:\n%s", args, re, info)
			}
		}
		attr := w.mustRun("run", "--", "sh", "-c",
			"cat /sys/class/infiniband/rxe0/ports/1/state; cat /sys/class/infiniband/rxe0/ports/1/gids/2; "+
				"cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/2 2>&1 || true")
		if (len(gids) < 2 || gids[1] == "") != strings.Contains(attr, "0000:0000:0000:0000:0000:0000:0000:0000") ||
			!strings.Contains(attr, strings.TrimPrefix(state, "PORT_")) {
			t.Errorf("after ip %v: got wrong files: %s", args, attr)
		}
	}
	const gid, perr, active = "IBV_EVENT_GID_CHANGE", "IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE"
	v4 := func(n int) string { return fmt.Sprintf("::ffff:10.66.0.%d", n) }
	step([]string{gid}, []string{v4(1), "fd66::1", v4(2)}, "PORT_ACTIVE", 4096, "addr", "add", "10.66.0.2/32", "dev",
		"veth0")
	step([]string{gid}, []string{"", "fd66::1", v4(2)}, "PORT_ACTIVE", 4096, "addr", "del", "10.66.0.1/32", "dev", "veth0")
	step([]string{gid}, []string{"fd66::2", "fd66::1", v4(2)}, "PORT_ACTIVE", 4096, "addr", "add", "fd66::2/128", "dev",
		"veth0", "nodad")
	step(nil, []string{"fd66::2", "fd66::1", v4(2)}, "PORT_ACTIVE", 1024, "link", "set", "veth0", "mtu", "1500")
	step([]string{perr}, []string{"fd66::2", "fd66::1", v4(2)}, "PORT_DOWN", 1024, "link", "set", "veth1", "down")
	step([]string{active}, []string{"fd66::2", "fd66::1", v4(2)}, "PORT_ACTIVE", 1024, "link", "set", "veth1", "up")
	// Linux removes the IPv6 addresses of an interface when the interface goes down.
	step([]string{perr, gid, gid}, []string{"", "", v4(2)}, "PORT_DOWN", 1024, "link", "set", "veth0", "down")
	step([]string{active}, []string{"", "", v4(2)}, "PORT_ACTIVE", 1024, "link", "set", "veth0", "up")
	step([]string{gid}, []string{v4(1), "", v4(2)}, "PORT_ACTIVE", 1024, "addr", "add", "10.66.0.1/32", "dev", "veth0")
	step([]string{perr, gid, gid}, nil, "PORT_DOWN", 1024, "link", "del", "veth0")
	watch.Process.Signal(syscall.SIGTERM)
	watch.Wait()
}

func countEqual(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}

// TestConnectionSurvivesShortAddressLoss tests that a connection continues after a short loss of its address, and fails
// after a permanent loss. A new connection must work after the address has returned.
func TestConnectionSurvivesShortAddressLoss(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	ns, ip := newNetNS(t)
	w := startService(t, testUsers()[0], ns, "--link", "rxe0=veth0")
	stats := func(name string) uint64 {
		return w.sendRequest(&ctl.Request{Op: ctl.OpStatShow, Name: "rxe0"}).Stats[0].Counters[name]
	}
	run := func(iterations string, meanwhile func()) (*programPair, error) {
		done := make(chan struct{})
		before := stats("rcvd_pkts")
		go func() {
			defer close(done)
			testutil.Eventually(t, "packets arrive", func() bool { return stats("rcvd_pkts") > before+1000 })
			meanwhile()
		}()
		p, err := w.runPingpong("-n", iterations)
		<-done
		return p, err
	}
	add := func() { ip("addr", "add", "10.66.0.1/32", "dev", "veth0") }
	del := func() { ip("addr", "del", "10.66.0.1/32", "dev", "veth0") }
	downed := uint64(0)
	for _, c := range []struct{ lose, back func() }{
		{del, add},
		{func() { downed++; ip("link", "set", "veth1", "down") }, func() { ip("link", "set", "veth1", "up") }},
	} {
		// The program's retries end after half a second. A busy machine may lose the address for longer.
		for try := 1; ; try++ {
			var lost time.Duration
			_, err := run("15000", func() {
				errs := stats("send_err") // before the change, because retries may end soon
				began := time.Now()
				c.lose()
				testutil.Eventually(t, "sends fail", func() bool { return stats("send_err") > errs })
				c.back()
				lost = time.Since(began)
			})
			if err == nil {
				break
			}
			if lost < 400*time.Millisecond || try == 5 {
				t.Errorf("exchange with a loss of the address for %v: %v", lost, err)
				break
			}
			t.Logf("the address was lost for %v, longer than the retries last: again", lost)
		}
		p, err := run("10000000", c.lose)
		if err == nil || !strings.Contains(p.serverOut+p.clientOut, "transport retry counter exceeded") {
			t.Errorf("address removed permanently: %v\n%s%s", err, p.serverOut, p.clientOut)
		}
		c.back()
		testutil.Eventually(t, "the device is as before", func() bool {
			out := w.mustRun("link", "show")
			return strings.Contains(out, "ACTIVE") && strings.Contains(out, "1: 0000:0000:0000:0000:0000:ffff:0a42:0001")
		})
		if _, err := w.runPingpong("-n", "100"); err != nil {
			t.Errorf("after the return: %v", err)
		}
	}
	if n := stats("link_downed"); n != downed {
		t.Errorf("link_downed: got %d, want %d", n, downed)
	}
}

// TestSeveralDevicesOnOneInterface tests several devices on one interface, each with a separate address. The test adds
// one device while a program runs.
func TestSeveralDevicesOnOneInterface(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong", "ibv_devices")
	ns, ip := newNetNS(t)
	ip("addr", "add", "10.66.0.2/32", "dev", "veth0")
	w := startService(t, testUsers()[0], ns, "--link", "rxe0=10.66.0.1", "--link", "rxe1=fd66::1")
	program := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "sh", "-c",
		"ibv_devices; echo listed; read x; ibv_devices; ibv_rc_pingpong -d rxe2 -g 1 -p 18599 >/dev/null & "+
			"for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; ibv_rc_pingpong -d rxe0 -g 1 -p 18599 127.0.0.1 >/dev/null 2>&1 && echo exchanged && break; done; wait")
	var out testutil.Buffer
	program.Stdout, program.Stderr = &out, &out
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the program has listed the devices", func() bool {
		return strings.Contains(out.String(), "listed")
	})
	w.mustRun("link", "add", "rxe2", "--addr", "10.66.0.2")
	fmt.Fprintln(in, "go on")
	if err := program.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	before, after, _ := strings.Cut(out.String(), "listed")
	for dev, had := range map[string]bool{"rxe0": true, "rxe1": true, "rxe2": false} {
		if strings.Contains(before, dev) != had || !strings.Contains(after, dev) {
			t.Errorf("device %s:\n%s", dev, &out)
		}
	}
	if !strings.Contains(after, "exchanged") {
		t.Errorf("exchange on the new device:\n%s", &out)
	}
	// A device ignores the other addresses of its interface. Two devices cannot have the same address.
	ip("addr", "add", "10.66.0.3/32", "dev", "veth0")
	if b, err := w.verbenaCommand(w.contextWithTimeout(20), "link", "add", "rxe3", "--addr",
		"10.66.0.2").CombinedOutput(); err == nil ||
		!strings.Contains(string(b), "link rxe2") {
		t.Errorf("link add with an address in use: got %v: %s", err, b)
	}
	w.mustRun("link", "add", "rxe3", "--addr", "10.66.0.3")
	var links []struct {
		Name string
		GIDs []struct{ Addr string }
	}
	if err := json.Unmarshal([]byte(w.mustRun("link", "show", "--json")), &links); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"rxe0": "10.66.0.1", "rxe1": "fd66::1", "rxe2": "10.66.0.2", "rxe3": "10.66.0.3"}
	for _, l := range links {
		if len(l.GIDs) != 2 || l.GIDs[1].Addr != want[l.Name] {
			t.Errorf("link %s: got GIDs %v", l.Name, l.GIDs)
		}
	}
	if len(links) != 4 {
		t.Errorf("links: got %v, want 4", links)
	}
}
