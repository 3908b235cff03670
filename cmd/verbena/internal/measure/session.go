package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"verbena/verbs"
)

// protocol is the number of the exchange: ends of different numbers do not understand one another.
const protocol = 1

// kind is what the client wants to do.
type kind string

const (
	pingPong kind = "pingpong"
	perf     kind = "perf"
)

// hello is the first message each way.
type hello struct {
	Protocol int              `json:"protocol"`
	Kind     kind             `json:"kind,omitempty"`
	Error    string           `json:"error,omitempty"` // the server refuses
	Params   Params           `json:"params"`
	Ends     []verbs.Endpoint `json:"ends,omitempty"`
	Memory   verbs.Remote     `json:"memory"` // that the peer may reach
}

// bye ends the exchange, and answers that.
type bye struct {
	Received int64 `json:"received"`
}

// errPeerGone is the error of an end whose peer has ended early.
var errPeerGone = errors.New("the other side has ended the exchange")

// errForeign is the error of an end whose peer says something else than a message of this package.
var errForeign = errors.New("the other side is no verbena")

// session is the agreement of two ends.
type session struct {
	conn   net.Conn
	enc    *json.Encoder
	dec    *json.Decoder
	ctx    context.Context // ends with the session, or when the peer fails
	cancel context.CancelCauseFunc
	bye    chan bye
	done   atomic.Int64 // messages so far
	all    sync.WaitGroup
}

const (
	// handshakeTime bounds what the peer takes to answer.
	handshakeTime = 20 * time.Second
	// stallTime is how long an exchange may make no progress.
	stallTime = 20 * time.Second
	// maxHello bounds what is read of a peer before it is checked.
	maxHello = 1 << 20
)

func newSession(ctx context.Context, conn net.Conn) *session {
	s := &session{conn: conn, enc: json.NewEncoder(conn), bye: make(chan bye, 1)}
	s.dec = json.NewDecoder(io.LimitReader(conn, maxHello))
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.all.Go(func() {
		<-s.ctx.Done()
		_ = conn.Close()
	})
	_ = conn.SetDeadline(time.Now().Add(handshakeTime))
	return s
}

// close ends the session and waits for its goroutines.
func (s *session) close() {
	s.cancel(nil)
	s.all.Wait()
}

// send and receive exchange a message; the cause of an ended context is the error then.
func (s *session) send(v any) error { return s.explain("write to the other side", s.enc.Encode(v)) }

func (s *session) receive(v any) error {
	return s.explain("read from the other side", s.dec.Decode(v))
}

func (s *session) explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, io.ErrUnexpectedEOF):
		return errPeerGone
	case errors.As(err, new(*json.SyntaxError)), errors.As(err, new(*json.UnmarshalTypeError)):
		return fmt.Errorf("%w; it may be one of rdma-core's programs, which --compat meets", errForeign)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// watch ends the context when the peer fails. It takes the peer's bye.
func (s *session) watch() {
	_ = s.conn.SetDeadline(time.Time{})
	s.all.Go(func() {
		var b bye
		if err := s.receive(&b); err != nil {
			s.cancel(err)
			return
		}
		s.bye <- b
	})
}

// guard ends the context when nothing completes for some time, and reports progress; the returned function ends that.
func (s *session) guard(phase string, progress func(string, int64, time.Duration)) (stop func()) {
	start, quit := time.Now(), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		last, since := s.done.Load(), start
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				n := s.done.Load()
				if n != last {
					last, since = n, now
				}
				if now.Sub(since) >= stallTime {
					s.cancel(fmt.Errorf("no message was completed within %v: one may have been lost, or the other side has stopped", stallTime))
					return
				}
				if progress != nil {
					progress(phase, n, now.Sub(start))
				}
			}
		}
	})
	return func() {
		close(quit)
		ended.Wait()
	}
}

// awaitBye waits until the peer says that it is done.
func (s *session) awaitBye() (bye, error) {
	select {
	case b := <-s.bye:
		return b, nil
	case <-s.ctx.Done():
		select { // both may be true
		case b := <-s.bye:
			return b, nil
		default:
		}
		return bye{}, context.Cause(s.ctx)
	}
}
