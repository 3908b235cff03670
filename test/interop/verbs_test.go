//go:build interop

package interop

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// missingKernelAbilities lists the abilities in the tests of package verbs that the rxe of Linux 6.1 lacks
// (docs/deviations.md). The rxe does not loop its multicast packets back to its own queue pairs.
var missingKernelAbilities = []string{"ATOMIC WRITE", "FLUSH", "multicast", "range of a window",
	"local protection error",
	"event of an access error"}

// verbenaTools lists verbena's own programs that use package verbs.
var verbenaTools = []interopTool{
	{"verbena pingpong", "RC", "-g GID -n 50 -s 9000"},
	{"verbena pingpong", "UC", "-g GID -n 50 --type uc --op write -e"},
	{"verbena perf", "RC", "-g GID -n 50 --op read -s 16K -e -q 2"},
	{"verbena perf", "UD", "-g GID -n 50 --type ud --op send -s 1K -e --depth 4"},
}

// testCommands runs the commands within Linux, and between Linux and Verbena.
func testCommands(t *testing.T) {
	c := reportCell{Section: "verbs", Operation: "`verbena devinfo`", Service: "-", Role: kernelPeer.name, IP: "IPv4"}
	runCell(t, c, func() error {
		wait, err := kernelPeer.startProgram([]string{theLab.verbena, "devinfo", "rxe0"})
		if err != nil {
			return err
		}
		status, out, err := wait(toolTimeout)
		if err != nil {
			return err
		}
		for _, want := range []string{"/dev/infiniband/uverbs0", "PORT_ACTIVE_EVENT",
			guestIP["IPv4"] + ", RoCE v2, the default"} {
			if status != 0 || !strings.Contains(out, want) {
				return fmt.Errorf("exit status %d, want %q in the output: %s", status, want, out)
			}
		}
		return nil
	})
	port := 19800
	for _, tl := range verbenaTools {
		for _, r := range append([]role{{theKernel, theKernel}}, roles...) {
			tl.runReported(t, "verbs", r, "IPv4", &port)
		}
	}
}

// testVerbs runs the tests of packages verbs and cm on the kernel's device, with the Go library on /dev/infiniband
// of Linux. No test is skipped.
func testVerbs(t *testing.T) {
	c := reportCell{Section: "verbs", Operation: "packages verbs and cm on /dev/infiniband", Service: "RC, UC, UD",
		Role: kernelPeer.name, IP: "IPv4"}
	runCell(t, c, func() error {
		wait, err := kernelPeer.startProgram([]string{"env", "VERBS_DEVICE=rxe0", "VERBS_WITHOUT=" +
			strings.Join(missingKernelAbilities, ","),
			"VERBS_ADDR=" + guestIP["IPv4"],
			theLab.programPath("verbs-suite"), "-test.v", "-test.skip", "^Test(Reports|SRD)$"}) // only for Verbena
		if err != nil {
			return err
		}
		status, out, err := wait(2 * time.Minute)
		if err != nil {
			return err
		}
		if status != 0 || strings.Contains(out, "SKIP") || !strings.Contains(out, "--- PASS: TestDevice ") ||
			!strings.Contains(out, "--- PASS: TestConnections ") {
			return fmt.Errorf("exit status %d: %s", status, out)
		}
		return nil
	})
	testCommands(t)
}

// rdmanetTests selects the tests of package rdmanet that need no separate device.
const rdmanetTests = "^(TestConnPassesNettest|TestFlowControlOfManySizes|TestListenerIgnoresForeignPeers|" +
	"TestCMConnBehavesLikeTCPSetup|TestKilledPeerUnblocksCalls)$"

// testRdmanet runs package rdmanet between two ends on the kernel's device, and between the two sides.
func testRdmanet(t *testing.T) {
	tests := theLab.programPath("rdmanet-tests")
	c := reportCell{Section: "verbs", Operation: "package rdmanet on /dev/infiniband", Service: "RC",
		Role: kernelPeer.name,
		IP:   "IPv4"}
	runCell(t, c, func() error {
		wait, err := kernelPeer.startProgram([]string{"env", "VERBS_DEVICE=rxe0", "VERBS_ADDR=" + guestIP["IPv4"], tests,
			"-test.v",
			"-test.run", rdmanetTests})
		if err != nil {
			return err
		}
		status, out, err := wait(2 * time.Minute)
		if err != nil {
			return err
		}
		if status != 0 || strings.Contains(out, "SKIP") || !strings.Contains(out, "--- PASS: TestConnPassesNettest ") ||
			!strings.Contains(out, "--- PASS: TestCMConnBehavesLikeTCPSetup ") {
			return fmt.Errorf("exit status %d: %s", status, out)
		}
		return nil
	})
	port := 18700
	for _, how := range []string{"tcp", "cm"} {
		for _, ip := range ipNames {
			for _, r := range roles {
				c := reportCell{Section: "verbs", Operation: "package rdmanet, set up over " + how, Service: "RC", Role: r.String(),
					IP: ip}
				runCell(t, c, func() error {
					port++
					end := func(p *peer, does string) (func(time.Duration) (int, string, error), error) {
						at := net.JoinHostPort(r.resp().ip[ip], fmt.Sprint(port))
						return p.startProgram([]string{"env", "VERBS_DEVICE=rxe0", "RDMANET_CHILD=" + does + " " + how + " " + at, tests})
					}
					server, err := end(r.resp(), "serve")
					if err != nil {
						return err
					}
					client, err := end(r.req(), "dial")
					if err != nil {
						return err
					}
					cstat, cout, cerr := client(toolTimeout)
					sstat, sout, serr := server(time.Second)
					if cstat != 0 || sstat != 0 || cerr != nil || serr != nil {
						return fmt.Errorf("%s: exit status %d, %w: %s; %s: exit status %d, %w: %s",
							r.req().name, cstat, cerr, lastLines(cout), r.resp().name, sstat, serr, lastLines(sout))
					}
					return nil
				})
			}
		}
	}
}
