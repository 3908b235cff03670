//go:build e2e || interop

package suite_test

import (
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/leaktest"
	"verbena/test/reports"
	"verbena/test/suite"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/service"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// deviceOpener returns a function that opens the device with a name. The device is one of the kernel, of the service
// that runs this program or, with VERBS_SERVICE, of the service at that socket.
func deviceOpener(t *testing.T, name string) func() (*verbs.Device, error) {
	if os.Getenv("VERBS_SERVICE") == "" {
		return func() (*verbs.Device, error) { return verbs.Open(name) }
	}
	s := connectService(t)
	return func() (*verbs.Device, error) { return s.Open(name) }
}

func connectService(t *testing.T) *service.Service {
	s, err := service.At(os.Getenv("VERBS_SERVICE"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDevice runs the tests on the device named by VERBS_DEVICE. VERBS_WITHOUT lists the abilities that the device
// lacks.
func TestDevice(t *testing.T) {
	name := os.Getenv("VERBS_DEVICE")
	if name == "" {
		t.Skip("VERBS_DEVICE is not set")
	}
	c := suite.Config{Open: deviceOpener(t, name), Without: map[suite.Ability]bool{}}
	for _, a := range strings.Split(os.Getenv("VERBS_WITHOUT"), ",") {
		c.Without[suite.Ability(a)] = true
	}
	suite.Run(t, c)
}

// TestSRD runs the tests of SRD on the device named by VERBS_EFA.
func TestSRD(t *testing.T) {
	name := os.Getenv("VERBS_EFA")
	if name == "" {
		t.Skip("VERBS_EFA is not set")
	}
	open := deviceOpener(t, name)
	suite.RunSRD(t, suite.SRDConfig{Open: [2]func() (*verbs.Device, error){open, open}})
}

// cmConfig returns the configuration for tests of the connection manager on the same device, at the address
// VERBS_ADDR.
func cmConfig(t *testing.T) suite.CMConfig {
	name, addr := os.Getenv("VERBS_DEVICE"), os.Getenv("VERBS_ADDR")
	if name == "" || addr == "" {
		t.Skip("VERBS_DEVICE or VERBS_ADDR is not set")
	}
	manager := cm.Open
	if os.Getenv("VERBS_SERVICE") != "" {
		manager = connectService(t).ConnectionManager
	}
	return suite.CMConfig{Config: suite.Config{Open: deviceOpener(t, name)}, Manager: manager,
		Addr: netip.MustParseAddr(addr)}
}

// TestConnections runs the tests of package cm.
func TestConnections(t *testing.T) { suite.RunCM(t, cmConfig(t)) }

// TestReports runs the programs of test/reports on a device of Verbena. The kernel's rxe has many of the faults.
func TestReports(t *testing.T) {
	if os.Getenv("VERBS_REPORTS") == "" {
		t.Skip("VERBS_REPORTS is not set")
	}
	reports.Run(t, cmConfig(t))
}

// These marks show in a system call trace where TestQuiet starts and ends its loop.
const (
	markBefore = 1<<30 + 1
	markAfter  = 1<<30 + 2
)

// TestQuiet posts RDMA WRITEs, as many as VERBS_POSTS, and polls for their completions. A test inspects the system
// calls of the loop.
func TestQuiet(t *testing.T) {
	name, posts := os.Getenv("VERBS_DEVICE"), 1000
	if name == "" {
		t.Skip("VERBS_DEVICE is not set")
	}
	if n := os.Getenv("VERBS_POSTS"); n != "" {
		var err error
		if posts, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	d, err := deviceOpener(t, name)()
	w := &suite.Testbed{T: t, Device: d}
	w.Must(err)
	defer d.Close()
	a, b := w.NewPair(verbs.QPInit{SendWRs: 128})
	wr := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: a.MR.SGE(0, 64), Remote: b.MR.Remote(0)}
	var wc [32]verbs.WC
	const depth = 64
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	_, _ = unix.Getpgid(markBefore)
	for posted, done := 0, 0; done < posts; {
		for ; posted < posts && posted-done < depth; posted++ {
			if err := a.QP.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
		}
		n, err := a.CQ.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			w.Must(verbs.CompletionError(&wc[i]))
		}
		done += n
	}
	_, _ = unix.Getpgid(markAfter)
}
