package web

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"verbena/internal/contain"
)

const (
	// refreshInterval is the time between two states of an open page.
	refreshInterval = time.Second
	// minRefresh limits the rate of states after actions.
	minRefresh = 100 * time.Millisecond
	// maxShare limits the share of time that states take: the next state follows after maxShare times the duration of
	// the last one.
	maxShare = 20
	// maxStreams limits the number of open pages.
	maxStreams = 8
)

// stream sends the state of the service to the open pages. One goroutine takes the states for all pages. The goroutine
// exists only while a page is open.
type stream struct {
	take  func() []byte // returns a message
	ended func()        // is called after the last page was closed
	log   *slog.Logger

	mu      sync.Mutex
	readers map[chan []byte]struct{} // each channel holds the latest message that the page has not taken yet
	wake    chan struct{}
	last    chan struct{} // closed after the last page was closed
}

// join adds a page until the caller calls leave. join returns false if there are too many pages.
func (s *stream) join() (messages <-chan []byte, leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.readers) >= maxStreams {
		return nil, nil, false
	}
	c := make(chan []byte, 1)
	if len(s.readers) == 0 {
		s.readers = map[chan []byte]struct{}{}
		s.wake, s.last = make(chan struct{}, 1), make(chan struct{})
		go s.run(s.wake, s.last)
	} else {
		s.wakeLocked()
	}
	s.readers[c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.readers, c); len(s.readers) == 0 {
			close(s.last)
		}
	}, true
}

// refresh sends a state soon, for example after an action.
func (s *stream) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

func (s *stream) wakeLocked() {
	if len(s.readers) == 0 {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run sends states until the last page is closed.
func (s *stream) run(wake, last <-chan struct{}) {
	defer contain.RecoverPanic(s.ended, contain.LogPanic(s.log, "panic after the last web page was closed"))
	for {
		began := time.Now()
		contain.RecoverPanic(func() { s.send(s.take()) }, contain.LogPanic(s.log, "panic in a state for the web page"))
		took := time.Since(began)
		next := time.NewTimer(max(refreshInterval-took, maxShare*took))
		select {
		case <-last:
			next.Stop()
			return
		case <-next.C:
			continue
		case <-wake:
			next.Stop()
		}
		select {
		case <-last:
			return
		case <-time.After(max(minRefresh-time.Since(began), maxShare*took-time.Since(began), 0)):
		}
	}
}

// send gives a message to each page, in place of a message that the page has not taken.
func (s *stream) send(message []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.readers {
		select {
		case <-c:
		default:
		}
		c <- message
	}
}

// serveStream sends server-sent events until the page is closed: first one with the actions, then the states.
func (p *page) serveStream(w http.ResponseWriter, r *http.Request) {
	messages, leave, ok := p.stream.join()
	if !ok {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	write := func(parts ...string) error {
		err := control.SetWriteDeadline(time.Now().Add(requestTimeout))
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		for _, s := range parts {
			if _, err := io.WriteString(w, s); err != nil {
				return err
			}
		}
		return control.Flush()
	}
	if write("retry: 1000\nevent: meta\ndata: ", string(p.meta()), "\n\n") != nil {
		return
	}
	for {
		select {
		case m := <-messages:
			if write("data: ", string(m), "\n\n") != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
