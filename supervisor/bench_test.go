package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkDoorbell measures the round trip of a trapped write(2) on a device file. An untrapped write takes 0.3 us.
func BenchmarkDoorbell(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			w := newFixture(b)
			r := w.startSelf("doorbells", strconv.Itoa(threads), strconv.Itoa(b.N))
			code, out := w.waitForExit(r)
			ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if code != 0 || err != nil {
				b.Fatalf("exit code: got %d, want 0; printed %q", code, out)
			}
			b.ReportMetric(ns/float64(b.N), "ns/doorbell")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkWrite measures write(2) to a file other than a device. The file has an ordinary number, a number of the
// low range of device files, or a number in the range without a trap for write(2). BenchmarkWrite also runs the
// same program without a supervisor.
func BenchmarkWrite(b *testing.B) {
	args := []string{"writes", strconv.Itoa(max(b.N, 2000)), "50", "800", "1000"}
	w := newFixture(b)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	alone := exec.Command(self, args[1:]...)
	alone.Env = append(os.Environ(), programEnvVar+"="+args[0])
	times := func(name string, out string) {
		for i, f := range strings.Fields(out) {
			ns, err := strconv.ParseFloat(f, 64)
			if err != nil {
				b.Fatalf("output: got %q, want a number", out)
			}
			b.ReportMetric(ns, fmt.Sprintf("ns/%s-%s", args[2+i], name))
		}
	}
	out, err := alone.Output()
	if err != nil {
		b.Fatal(err)
	}
	times("alone", string(out))
	code, under := w.waitForExit(w.startSelf(args[0], args[1:]...))
	if code != 0 {
		b.Fatalf("exit code: got %d, want 0; printed %q", code, under)
	}
	times("supervised", under)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAlternatingDoorbells measures a doorbell that follows a doorbell of another thread.
func BenchmarkAlternatingDoorbells(b *testing.B) {
	w := newFixture(b)
	code, out := w.waitForExit(w.startSelf("pingpong", strconv.Itoa(b.N)))
	ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if code != 0 || err != nil {
		b.Fatalf("exit code: got %d, want 0; printed %q", code, out)
	}
	b.ReportMetric(ns/float64(b.N), "ns/doorbell")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStatPath measures the round trip of stat(2) on a path outside of the virtual files, and on a virtual path.
func BenchmarkStatPath(b *testing.B) {
	for _, path := range []string{"/etc/hostname", deviceFile} {
		b.Run(path[1:4], func(b *testing.B) {
			w := newFixture(b)
			code, out := w.waitForExit(w.startSelf("stats", path, strconv.Itoa(b.N)))
			ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if code != 0 || err != nil {
				b.Fatalf("exit code: got %d, want 0; printed %q", code, out)
			}
			b.ReportMetric(ns/float64(b.N), "ns/stat")
			b.ReportMetric(0, "ns/op")
		})
	}
}
