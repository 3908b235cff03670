package service

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logLimit limits the rate of log lines to a burst size and an average.
type logLimit struct {
	burst     int
	perSecond float64
}

// There is a limit for the lines about one user, and a limit for all lines together.
var (
	userLogLimit  = logLimit{burst: 20, perSecond: 2}
	totalLogLimit = logLimit{burst: 200, perSecond: 50}
)

// maxLogUsers is the number of users with separate limits; further users share one limit.
const maxLogUsers = 1024

// uidKey is the log attribute that names the user.
const uidKey = "uid"

// Records below Info have separate limits, so that they cannot suppress warnings.
var (
	userDebugLimit  = logLimit{burst: 200, perSecond: 50}
	totalDebugLimit = logLimit{burst: 1000, perSecond: 200}
)

// limitLog returns a logger with a limited rate. Suppressed lines are counted, and the count is logged shortly
// afterwards. The method debugQueue.run, which the caller starts, writes the records below Info. A thread that
// answers programs therefore does not wait for the reader of the log.
func limitLog(l *slog.Logger) (*slog.Logger, *debugQueue) {
	q := &debugQueue{records: make(chan debugRecord, maxDebugRecords), over: make(chan struct{}),
		done: make(chan struct{})}
	return slog.New(&limitedLog{to: l.Handler(), queue: q,
		state: newLogState(userLogLimit, totalLogLimit), debug: newLogState(userDebugLimit, totalDebugLimit)}), q
}

// maxDebugRecords is the number of queued records below Info. The log suppresses further records below Info.
const maxDebugRecords = 1024

// debugQueue holds the records below Info that are not written yet.
type debugQueue struct {
	records chan debugRecord
	over    chan struct{}
	once    sync.Once
	done    chan struct{} // closed when run has returned
}

type debugRecord struct {
	to slog.Handler
	slog.Record
}

// writeRecords writes records until close.
func (q *debugQueue) writeRecords() {
	defer close(q.done)
	write := func(r debugRecord) { _ = r.to.Handle(context.Background(), r.Record) }
	for {
		select {
		case r := <-q.records:
			write(r)
		case <-q.over:
			for {
				select {
				case r := <-q.records:
					write(r)
				default:
					return
				}
			}
		}
	}
}

// close ends run after it has written the last queued record, and waits for its return.
func (q *debugQueue) close() {
	if q != nil {
		q.once.Do(func() { close(q.over) })
		<-q.done
	}
}

// limitedLog is the slog.Handler that limitLog installs.
type limitedLog struct {
	to    slog.Handler
	uid   int64 // from WithAttrs
	known bool
	state *logState
	debug *logState
	queue *debugQueue
}

type logState struct {
	perUser    logLimit
	all        logLimit
	mu         sync.Mutex
	total      logBucket
	users      map[int64]*logBucket
	suppressed int
}

func newLogState(perUser, all logLimit) *logState {
	return &logState{perUser: perUser, all: all, users: map[int64]*logBucket{}}
}

// logBucket counts the lines that may still be written for one source.
type logBucket struct {
	left float64
	at   time.Time // time of the last change of left; zero before the first line
}

// takeLineToken removes one line from the bucket. takeLineToken returns false if the bucket is empty.
func (b *logBucket) takeLineToken(l logLimit, now time.Time) bool {
	if b.at.IsZero() {
		b.left = float64(l.burst)
	} else {
		b.left = min(float64(l.burst), b.left+now.Sub(b.at).Seconds()*l.perSecond)
	}
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (h *limitedLog) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

func (h *limitedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	o := *h
	o.to = h.to.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == uidKey {
			o.uid, o.known = a.Value.Int64(), true
		}
	}
	return &o
}

func (h *limitedLog) WithGroup(name string) slog.Handler {
	o := *h
	o.to = h.to.WithGroup(name)
	return &o
}

func (h *limitedLog) Handle(ctx context.Context, r slog.Record) error {
	uid, known := h.uid, h.known
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == uidKey {
			uid, known = a.Value.Int64(), true
		}
		return true
	})
	state := h.state
	if r.Level < slog.LevelInfo {
		state = h.debug
	}
	report := func() { h.logSuppressedCount(state) }
	if !state.allowLine(uid, known, time.Now(), report) {
		return nil
	}
	if r.Level >= slog.LevelInfo {
		return h.to.Handle(ctx, r)
	}
	select {
	case h.queue.records <- debugRecord{h.to, r.Clone()}:
	default:
		state.countSuppressedLine(report)
	}
	return nil
}

// allowLine reports whether a line may be written. For the first suppressed line, allow schedules report.
func (s *logState) allowLine(uid int64, known bool, now time.Time, report func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (!known || s.getOrAddBucket(uid).takeLineToken(s.perUser, now)) && s.total.takeLineToken(s.all, now) {
		return true
	}
	s.countSuppressedLineLocked(report)
	return false
}

// countSuppressedLine counts a suppressed line.
func (s *logState) countSuppressedLine(report func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.countSuppressedLineLocked(report)
}

func (s *logState) countSuppressedLineLocked(report func()) {
	if s.suppressed++; s.suppressed == 1 {
		time.AfterFunc(suppressedReportDelay, report)
	}
}

// suppressedReportDelay is the delay until the number of suppressed lines is logged.
const suppressedReportDelay = 5 * time.Second

func (s *logState) getOrAddBucket(uid int64) *logBucket {
	b := s.users[uid]
	if b == nil {
		if len(s.users) >= maxLogUsers {
			uid = -1
		}
		if b = s.users[uid]; b == nil {
			b = &logBucket{}
			s.users[uid] = b
		}
	}
	return b
}

// logSuppressedCount logs the number of suppressed lines.
func (h *limitedLog) logSuppressedCount(state *logState) {
	state.mu.Lock()
	n := state.suppressed
	state.suppressed = 0
	state.mu.Unlock()
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were suppressed: too many in a short time", 0)
	r.AddAttrs(slog.Int("lines", n))
	_ = h.to.Handle(context.Background(), r)
}
