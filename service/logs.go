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

// The limits of what is logged about one user's doings, and of everything together.
var (
	userLogLimit  = logLimit{burst: 20, perSecond: 2}
	totalLogLimit = logLimit{burst: 200, perSecond: 50}
)

// maxLogUsers is how many users have a limit of their own; more share one.
const maxLogUsers = 1024

// uidKey is the attribute of a line that tells whose doings it is about.
const uidKey = "uid"

// limitLog returns a logger that writes no more than the limits allow. Lines that are suppressed are counted, and the
// number is logged within a moment.
func limitLog(l *slog.Logger) *slog.Logger {
	return slog.New(&limitedLog{to: l.Handler(), state: &logState{users: map[int64]*logBucket{}}})
}

// limitedLog is the handler of limitLog.
type limitedLog struct {
	to    slog.Handler
	uid   int64 // of WithAttrs
	known bool
	state *logState
}

type logState struct {
	mu         sync.Mutex
	total      logBucket
	users      map[int64]*logBucket
	suppressed int
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
	if !h.state.allow(uid, known, time.Now(), h.report) {
		return nil
	}
	return h.to.Handle(ctx, r)
}

// allow reports whether a line may be written. For the first that may not it has report called in a moment.
func (s *logState) allow(uid int64, known bool, now time.Time, report func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (!known || s.user(uid).take(userLogLimit, now)) && s.total.take(totalLogLimit, now) {
		return true
	}
	if s.suppressed++; s.suppressed == 1 {
		time.AfterFunc(reportSuppressed, report)
	}
	return false
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
func (h *limitedLog) report() {
	h.state.mu.Lock()
	n := h.state.suppressed
	h.state.suppressed = 0
	h.state.mu.Unlock()
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were suppressed: too many in a short time", 0)
	r.AddAttrs(slog.Int("lines", n))
	_ = h.to.Handle(context.Background(), r)
}
