//go:build interop

package interop

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// kernelLacks is what the rxe of Linux 6.1 does not do of what package verbs is tested for; see docs/deviations.md. What it sends to a
// multicast group does not come back to its own queue pairs.
var kernelLacks = []string{"ATOMIC WRITE", "FLUSH", "multicast", "range of a window", "local protection error", "event of an access error"}

// testVerbs runs the tests of packages verbs and cm on the kernel's device: the Go library on /dev/infiniband of Linux. None is skipped.
func testVerbs(t *testing.T) {
	c := cell{Section: "verbs", Operation: "packages verbs and cm on /dev/infiniband", Service: "RC, UC, UD", Role: kernelPeer.name, IP: "IPv4"}
	runCell(t, c, func() error {
		wait, err := kernelPeer.start([]string{"env", "VERBS_DEVICE=rxe0", "VERBS_WITHOUT=" + strings.Join(kernelLacks, ","), "VERBS_ADDR=" + guestIP["IPv4"],
			theLab.program("verbs-suite"), "-test.v"})
		if err != nil {
			return err
		}
		status, out, err := wait(2 * time.Minute)
		if err != nil {
			return err
		}
		if status != 0 || strings.Contains(out, "SKIP") || !strings.Contains(out, "--- PASS: TestDevice ") || !strings.Contains(out, "--- PASS: TestConnections ") {
			return fmt.Errorf("exit status %d: %s", status, out)
		}
		return nil
	})
}
