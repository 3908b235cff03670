// Package metrics exports metrics of a service to Prometheus: the counters of `verbena stat show`, the states of
// `verbena dev show`, and the limited resources of all users together.
//
// The package answers any client that can connect, and therefore exports nothing about single users, processes or
// queue pairs. The package's cost is bounded by the number of connections, the number of answers computed at a
// time, and the time for each step. No client can prevent the answers to other clients.
package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"verbena/internal/ctl"
	"verbena/internal/httplisten"
	"verbena/internal/quota"
)

// dataSource provides the metrics. A service.Service is a dataSource.
type dataSource interface {
	Stats(dev string) ([]ctl.StatInfo, error)
	Devs(sees func(quota.ID) bool) []ctl.DevInfo
	Users(sees func(quota.ID) bool) []ctl.UserInfo
	Links() ([]ctl.LinkInfo, error)
}

const (
	// timeout limits the time to compute an answer, the time to send it, and the pause between two requests.
	timeout = 10 * time.Second
	// maxAnswers limits the number of answers computed at the same time. Further requests wait in order of arrival.
	maxAnswers = 2
)

// Listen listens on a TCP address, HOST:PORT. An empty HOST stands for all addresses of the machine.
func Listen(addr string) (net.Listener, error) {
	return httplisten.Listen("metrics", addr, "127.0.0.1:9401")
}

// Serve answers requests on l, which comes from Listen, until l is closed. It logs errors.
func Serve(l net.Listener, s dataSource, version string, log *slog.Logger) error {
	open := httplisten.New(l)
	srv := &http.Server{
		Handler:     checkHost(l, metricsHandler(s, version, log)),
		ReadTimeout: timeout, WriteTimeout: 2 * timeout, IdleTimeout: timeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	open.Prepare(srv)
	defer srv.Close() // closes the connections
	if err := srv.Serve(open); !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// checkHost makes h refuse requests of web pages with a foreign name if only this machine can connect to l. On a
// network, Prometheus may know this machine by any name.
func checkHost(l net.Listener, h http.Handler) http.Handler {
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := httplisten.CheckHost(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// metricsHandler answers GET and HEAD of /metrics.
func metricsHandler(s dataSource, version string, log *slog.Logger) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{s, version}, collectors.NewGoCollector(), newProcessCollector())
	answer := promhttp.HandlerFor(&cachedGatherer{from: r}, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
	})
	mux := http.NewServeMux()
	// The handler sends the answer from a buffer, outside of limitConcurrency, so a slow reader delays only its own
	// request.
	mux.Handle("GET /metrics", http.TimeoutHandler(limitConcurrency(answer), timeout, "the service took too long\n"))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "<!doctype html><title>Verbena</title><a href=\"/metrics\">metrics</a>\n")
	})
	return mux
}

// limitConcurrency limits the number of requests that h handles at a time. Further requests wait. If limitConcurrency
// refused requests, one client could make the requests of all others fail.
func limitConcurrency(h http.Handler) http.Handler {
	slots := make(chan struct{}, maxAnswers)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}

// metricsCacheTime is the time for which an answer is cached, so frequent requests cost little more than rare ones.
const metricsCacheTime = 250 * time.Millisecond

// cachedGatherer is a Gatherer that caches its metrics for the time fresh.
type cachedGatherer struct {
	from prometheus.Gatherer

	mu   sync.Mutex
	last []*dto.MetricFamily
	err  error
	at   time.Time
}

// Gather implements prometheus.Gatherer.
func (g *cachedGatherer) Gather() ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at.IsZero() || time.Since(g.at) >= metricsCacheTime {
		g.last, g.err = g.from.Gather()
		g.at = time.Now()
	}
	return g.last, g.err
}

// collector computes the metrics on request. The set of metrics depends on the devices.
type collector struct {
	s       dataSource
	version string
}

// Describe implements prometheus.Collector. Describe sends nothing, which makes the collector unchecked.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

func anyUser(quota.ID) bool { return true }

// isTotal selects the total of all users.
func isTotal(id quota.ID) bool { return id == quota.AllUsers }

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name, help string, v float64, labels prometheus.Labels) {
		names := slices.Sorted(maps.Keys(labels))
		values := make([]string, len(names))
		for i, n := range names {
			values[i] = labels[n]
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("verbena_"+name, help, names, nil), kind, v, values...)
	}
	gauge := func(name, help string, v float64, labels prometheus.Labels) {
		send(prometheus.GaugeValue, name, help, v, labels)
	}
	count := func(name, help string, v float64, labels prometheus.Labels) {
		send(prometheus.CounterValue, name, help, v, labels)
	}
	gauge("build_info", "The version of the service.", 1, prometheus.Labels{"version": c.version})
	for _, d := range c.s.Devs(anyUser) {
		dev := prometheus.Labels{"device": d.Name}
		gauge("device_info", "1 for each device, with its states.", 1,
			prometheus.Labels{"device": d.Name, "slot": d.State, "state": d.Device, "hardware": d.Hardware})
		gauge("device_contexts", "Open device files of programs.", float64(d.Contexts), dev)
		gauge("device_zombies", "Open device files of removed devices.", float64(d.Zombies), dev)
		count("device_resets_total", "Resets of the device.", float64(d.Resets), dev)
		gauge("device_recovery_seconds", "Duration of the last reset.", d.Recovery.Seconds(), dev)
	}
	links, err := c.s.Links()
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewDesc("verbena_link", "", nil, nil), err)
	}
	for _, l := range links {
		up := 0.0
		if l.State == "ACTIVE" {
			up = 1
		}
		gauge("device_port_up", "1 while the port of the device is active.", up, prometheus.Labels{"device": l.Name})
	}
	stats, err := c.s.Stats("")
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewDesc("verbena_stat", "", nil, nil), err)
	}
	for _, s := range stats {
		for name, n := range s.Counters {
			reason, dropped := strings.CutPrefix(name, "drop_")
			if dropped {
				count("device_dropped_packets_total", "Packets that the device has dropped, by reason.", float64(n),
					prometheus.Labels{"device": s.Dev, "reason": reason})
				continue
			}
			if event, ok := strings.CutPrefix(name, "event_"); ok {
				count("device_events_total", "Asynchronous events of the device, its port and its queues, by type.", float64(n),
					prometheus.Labels{"device": s.Dev, "event": event})
				continue
			}
			count("device_"+name+"_total", "The counter "+name+" of `verbena stat show`.", float64(n),
				prometheus.Labels{"device": s.Dev})
		}
	}
	for _, u := range c.s.Users(isTotal) {
		for _, h := range u.Holds {
			kind := prometheus.Labels{"kind": h.Kind}
			gauge("held", "Amount of a limited resource that all users hold; see `verbena serve --help`.", float64(h.Held), kind)
			gauge("held_limit", "Limit of that resource for all users; 0 means no limit.", float64(h.Limit), kind)
		}
	}
}
