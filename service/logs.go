package service

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logLimit bounds how many lines are written: at once, and on average.
type logLimit struct {
	burst     int
	perSecond float64
}

// The limits of log lines about one user, and of all lines together.
var (
	userLogLimit  = logLimit{burst: 20, perSecond: 2}
	totalLogLimit = logLimit{burst: 200, perSecond: 50}
)

// maxLogUsers is how many users have a limit of their own; more share one.
const maxLogUsers = 1024

// uidKey is the attribute of a line that names the user it is about.
const uidKey = "uid"

// Records below the level of Info have limits of their own, so that they keep no warning from being written.
var (
	userDebugLimit  = logLimit{burst: 200, perSecond: 50}
	totalDebugLimit = logLimit{burst: 1000, perSecond: 200}
)

// limitLog returns a logger that writes no more than the limits allow. Lines that are suppressed are counted, and the
// number is logged within a moment. Records below the level of Info are written by debugQueue.run, which the caller
// starts: threads that answer programs do not wait for the reader of the log.
func limitLog(l *slog.Logger) (*slog.Logger, *debugQueue) {
	q := &debugQueue{records: make(chan debugRecord, maxDebugRecords), over: make(chan struct{}),
		done: make(chan struct{})}
	return slog.New(&limitedLog{to: l.Handler(), queue: q,
		state: newLogState(userLogLimit, totalLogLimit), debug: newLogState(userDebugLimit, totalDebugLimit)}), q
}

// maxDebugRecords is how many records below the level of Info wait to be written. More are suppressed.
const maxDebugRecords = 1024

// debugQueue has the records below the level of Info that are not written yet.
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

// run writes records until close.
func (q *debugQueue) run() {
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

// close ends run when it has written what is queued, and waits for that.
func (q *debugQueue) close() {
	if q != nil {
		q.once.Do(func() { close(q.over) })
		<-q.done
	}
}

// limitedLog is the handler of limitLog.
type limitedLog struct {
	to    slog.Handler
	uid   int64 // of WithAttrs
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

// logBucket counts the lines that one source may still write.
type logBucket struct {
	left float64
	at   time.Time // of left; zero: nothing was written yet
}

// take reports whether one more line may be written, and counts it.
func (b *logBucket) take(l logLimit, now time.Time) bool {
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
	report := func() { h.report(state) }
	if !state.allow(uid, known, time.Now(), report) {
		return nil
	}
	if r.Level >= slog.LevelInfo {
		return h.to.Handle(ctx, r)
	}
	select {
	case h.queue.records <- debugRecord{h.to, r.Clone()}:
	default:
		state.suppress(report)
	}
	return nil
}

// allow reports whether a line may be written. For the first that may not, it schedules report.
func (s *logState) allow(uid int64, known bool, now time.Time, report func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (!known || s.user(uid).take(s.perUser, now)) && s.total.take(s.all, now) {
		return true
	}
	s.suppressLocked(report)
	return false
}

// suppress counts a line that is not written.
func (s *logState) suppress(report func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suppressLocked(report)
}

func (s *logState) suppressLocked(report func()) {
	if s.suppressed++; s.suppressed == 1 {
		time.AfterFunc(reportSuppressed, report)
	}
}

// reportSuppressed is the time after which the number of suppressed lines is logged.
const reportSuppressed = 5 * time.Second

func (s *logState) user(uid int64) *logBucket {
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

// report logs how many lines were suppressed.
func (h *limitedLog) report(state *logState) {
	state.mu.Lock()
	n := state.suppressed
	state.suppressed = 0
	state.mu.Unlock()
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were suppressed: too many in a short time", 0)
	r.AddAttrs(slog.Int("lines", n))
	_ = h.to.Handle(context.Background(), r)
}
