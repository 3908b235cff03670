package metrics

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"verbena/internal/procfile"
)

// processCollector collects the metrics about this process that all client libraries of Prometheus export. The Go
// library of Prometheus would open files in a way that the service's seccomp filter refuses.
type processCollector struct {
	started float64 // seconds since the epoch
}

func newProcessCollector() processCollector {
	return processCollector{started: processStartTime(time.Now())}
}

// Describe implements prometheus.Collector. Describe sends nothing, which makes the collector unchecked.
func (processCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p processCollector) Collect(out chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name, help string, v float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("process_"+name, help, nil, nil), kind, v)
	}
	var use unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &use) == nil {
		send(prometheus.CounterValue, "cpu_seconds_total", "Total user and system CPU time spent in seconds.",
			time.Duration(use.Utime.Nano()+use.Stime.Nano()).Seconds())
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		send(prometheus.GaugeValue, "open_fds", "Number of open file descriptors.", float64(len(fds)))
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		send(prometheus.GaugeValue, "max_fds", "Maximum number of open file descriptors.", float64(limit.Cur))
	}
	if total, resident, ok := memoryPages(); ok {
		page := float64(os.Getpagesize())
		send(prometheus.GaugeValue, "virtual_memory_bytes", "Virtual memory size in bytes.", total*page)
		send(prometheus.GaugeValue, "resident_memory_bytes", "Resident memory size in bytes.", resident*page)
	}
	if p.started > 0 {
		send(prometheus.GaugeValue, "start_time_seconds", "Start time of the process since unix epoch in seconds.", p.started)
	}
}

// memoryPages returns the sizes of the address space and of the resident memory, in pages. (proc_pid_statm(5))
func memoryPages() (total, resident float64, ok bool) {
	b, err := procfile.ReadNoFollow("/proc/self/statm")
	fields := bytes.Fields(b)
	if err != nil || len(fields) < 2 {
		return 0, 0, false
	}
	total, err = strconv.ParseFloat(string(fields[0]), 64)
	if err == nil {
		resident, err = strconv.ParseFloat(string(fields[1]), 64)
	}
	return total, resident, err == nil
}

// processStartTime returns the start time of the process in seconds since the epoch, or 0 if it is unknown.
// (proc_pid_stat(5))
func processStartTime(now time.Time) float64 {
	b, err := procfile.ReadNoFollow("/proc/self/stat")
	const ticks, start = 100, 19 // ticks per second; index of the start time after the name and its last ")"
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if err != nil || len(fields) <= start {
		return 0
	}
	at, err := strconv.ParseFloat(string(fields[start]), 64)
	var up unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return 0
	}
	age := time.Duration(up.Nano()) - time.Duration(at/ticks*float64(time.Second))
	return float64(now.Add(-age).UnixNano()) / float64(time.Second)
}
