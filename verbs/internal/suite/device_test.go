//go:build e2e || interop

package suite

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"verbena/internal/leaktest"
	"verbena/verbs"
	"verbena/verbs/cm"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestDevice runs the tests on the device that VERBS_DEVICE names, of the kernel or of the service under which this program runs.
// VERBS_WITHOUT lists abilities that it lacks.
func TestDevice(t *testing.T) {
	name := os.Getenv("VERBS_DEVICE")
	if name == "" {
		t.Skip("VERBS_DEVICE names no device")
	}
	c := Config{Open: func() (*verbs.Device, error) { return verbs.Open(name) }, Without: map[Ability]bool{}}
	for _, a := range strings.Split(os.Getenv("VERBS_WITHOUT"), ",") {
		c.Without[Ability(a)] = true
	}
	Run(t, c)
}

// TestConnections runs the tests of package cm on the same device, by the address VERBS_ADDR.
func TestConnections(t *testing.T) {
	name, addr := os.Getenv("VERBS_DEVICE"), os.Getenv("VERBS_ADDR")
	if name == "" || addr == "" {
		t.Skip("VERBS_DEVICE and VERBS_ADDR name no device")
	}
	RunCM(t, CMConfig{
		Config:  Config{Open: func() (*verbs.Device, error) { return verbs.Open(name) }},
		Manager: cm.Open,
		Addr:    netip.MustParseAddr(addr),
	})
}
