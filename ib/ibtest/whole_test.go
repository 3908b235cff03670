package ibtest

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"verbena/ib"
)

// wrongDriverEnv selects the wrong driver on which this process runs the suite.
const wrongDriverEnv = "IBTEST_WRONG_DRIVER"

// TestSuiteOnOneWrongDriver runs in the process that TestWrongDrivers starts for each wrong driver.
func TestSuiteOnOneWrongDriver(t *testing.T) {
	i, err := strconv.Atoi(os.Getenv(wrongDriverEnv))
	if err != nil {
		return // not started by TestWrongDrivers
	}
	w := driverDefects[i]
	var d *wrongDriver
	opts := wrongDriverOptions()
	if w.opts != nil {
		opts = wrongDriverOptions(w.opts(func() *wrongDriver { return d })...)
	}
	Run(t, func(t testing.TB) *ib.DeviceHandle {
		d = newWrongDriver(t)
		if w.break_ != nil {
			w.break_(d)
		}
		return d.dev
	}, opts...)
}

var wholeSuiteFlag = flag.Bool("whole", false,
	"run the whole suite against each wrong driver: the check for the fault must fail first")

// runOnWrongDriver runs the check that must find the fault of a wrong driver, or the whole suite up to the first
// failure, in a process of its own.
func runOnWrongDriver(t *testing.T, i int) (check, says string) {
	run := "^TestSuiteOnOneWrongDriver$"
	if by := driverDefects[i].by; by != "" && !*wholeSuiteFlag {
		run += "/^" + strings.ReplaceAll(by, "/", "$/^") + "$"
	}
	c := exec.Command(os.Args[0], "-test.run="+run, "-test.v", "-test.failfast", "-test.timeout=100s")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", wrongDriverEnv, i))
	out, _ := c.CombinedOutput()
	var b strings.Builder
	in := bufio.NewScanner(bytes.NewReader(out))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		line := in.Text()
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestSuiteOnOneWrongDriver/"); ok {
			name, _, _ = strings.Cut(name, " ")
			if parts := strings.SplitN(name, "/", 3); len(parts) > 1 {
				check = parts[0] + "/" + parts[1]
			}
		}
		b.WriteString(line + "\n")
	}
	return check, b.String()
}
