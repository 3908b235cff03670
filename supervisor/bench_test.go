package supervisor

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkDoorbell is the round trip of a trapped write(2) on a device file. Compare it with the 0.3 us of one that is
// not trapped.
func BenchmarkDoorbell(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			w := newWorld(b)
			r := w.startSelf("doorbells", strconv.Itoa(threads), strconv.Itoa(b.N))
			code, out := w.finish(r)
			ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if code != 0 || err != nil {
				b.Fatalf("exit code %d, printed %q", code, out)
			}
			b.ReportMetric(ns/float64(b.N), "ns/doorbell")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkPingPong is a doorbell after another thread's doorbell.
func BenchmarkPingPong(b *testing.B) {
	w := newWorld(b)
	code, out := w.finish(w.startSelf("pingpong", strconv.Itoa(b.N)))
	ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if code != 0 || err != nil {
		b.Fatalf("exit code %d, printed %q", code, out)
	}
	b.ReportMetric(ns/float64(b.N), "ns/doorbell")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPath is the round trip of stat(2) on a path that is not virtual, and on one that is.
func BenchmarkPath(b *testing.B) {
	for _, path := range []string{"/etc/hostname", deviceFile} {
		b.Run(path[1:4], func(b *testing.B) {
			w := newWorld(b)
			code, out := w.finish(w.startSelf("stats", path, strconv.Itoa(b.N)))
			ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if code != 0 || err != nil {
				b.Fatalf("exit code %d, printed %q", code, out)
			}
			b.ReportMetric(ns/float64(b.N), "ns/stat")
			b.ReportMetric(0, "ns/op")
		})
	}
}
