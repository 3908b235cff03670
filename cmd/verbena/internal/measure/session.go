package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

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
	Error    string           `json:"error,omitempty"` // the sender ends
	Params   Params           `json:"params"`
	Ends     []verbs.Endpoint `json:"ends,omitempty"`
	Memory   verbs.Remote     `json:"memory"` // that the peer may reach
}

// note is every later message: the zero note says each second that its sender runs.
type note struct {
	Done     bool   `json:"done,omitempty"` // the sender has sent, or counted, all its messages
	Received int64  `json:"received,omitempty"`
	Error    string `json:"error,omitempty"` // the sender ends
}

// ErrPeer is wrapped by the error of an end that ends because of the other.
var ErrPeer = errors.New("the other side")

var (
	errPeerGone = fmt.Errorf("%w has ended the exchange", ErrPeer)
	errForeign  = fmt.Errorf("%w does not speak this protocol", ErrPeer)
)

// peerError returns the error of the other end, without what would do something to a terminal.
func peerError(text string) error {
	const most = 400
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text[:min(len(text), most)])
	return fmt.Errorf("%w: %s", ErrPeer, text)
}

// session is the stream between two ends, with the queue pairs of this one.
type session struct {
	conn   net.Conn
	reader io.LimitedReader // of conn
	dec    *json.Decoder
	out    sync.Mutex      // held to write to conn
	ctx    context.Context // ends with the session, or when an end fails
	cancel context.CancelCauseFunc
	done   chan note    // the peer's, once
	count  atomic.Int64 // messages of the phase so far
	all    sync.WaitGroup
	end    *end // nil before newEnd
	notes  bool // the peer takes notes; rdma-core's programs do not
}

const (
	// handshakeTime bounds the time until both ends have connected.
	handshakeTime = 20 * time.Second
	// writeTime bounds the time until the peer, or the system between, has taken a message.
	writeTime = 5 * time.Second
	// stallTime is how long an exchange may make no progress, and the peer be silent.
	stallTime = 20 * time.Second
	// aliveTime is the time between the notes of an end, and between its looks at the device.
	aliveTime = time.Second
	// maxMessage bounds the bytes of a message of the peer.
	maxMessage = 1 << 18
)

// newSession begins the agreement by conn, which the session closes.
func newSession(ctx context.Context, conn net.Conn) *session {
	s := &session{conn: conn, done: make(chan note, 1), notes: true}
	s.reader.R = conn
	s.dec = json.NewDecoder(&s.reader)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTime))
	s.all.Go(func() {
		<-s.ctx.Done()
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // close writes to it
	})
	return s
}

// close ends the session and this end. It returns err, or the failure of the device that has led to it, and sends that
// to the peer.
func (s *session) close(err error) error {
	if s.end != nil && err != nil {
		err = s.end.cause(err)
	}
	if err != nil && s.notes && !errors.Is(err, ErrPeer) {
		_ = s.send(note{Error: err.Error()})
	}
	s.cancel(nil)
	_ = s.conn.Close()
	s.all.Wait()
	if s.end != nil {
		err = errors.Join(err, s.end.close())
	}
	return err
}

// send writes a message.
func (s *session) send(v any) error {
	s.out.Lock()
	defer s.out.Unlock()
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write(append(b, '\n'))
}

func (s *session) write(b []byte) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeTime))
	_, err := s.conn.Write(b)
	return s.explain("write to", err)
}

// receive reads a message.
func (s *session) receive(v any) error {
	s.reader.N = maxMessage
	err := s.dec.Decode(v)
	if err != nil && s.reader.N <= 0 {
		return fmt.Errorf("%w: its message exceeds %d bytes", errForeign, maxMessage)
	}
	return s.explain("read from", err)
}

// explain returns the error of a call on the stream. It is the cause of an ended context, if that is why.
func (s *session) explain(what string, err error) error {
	var network net.Error
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case errors.As(err, new(*json.SyntaxError)), errors.As(err, new(*json.UnmarshalTypeError)):
		return fmt.Errorf("%w: run the same command at both ends; rdma-core's programs are met by `verbena pingpong --compat`",
			errForeign)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%s %w: timed out: it is stopped, unreachable, or waits for something else", what, ErrPeer)
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, io.ErrUnexpectedEOF):
		return errPeerGone // a reset of the connection among them
	}
	return fmt.Errorf("%s %w: %w", what, ErrPeer, err)
}

// watch begins to exchange notes: from now on the context ends when the peer fails or is silent, or alive, which is
// called every second, returns an error.
func (s *session) watch(alive func() error) {
	s.all.Go(func() {
		for {
			var n note
			_ = s.conn.SetReadDeadline(time.Now().Add(stallTime))
			err := s.receive(&n)
			if err == nil && n.Error != "" {
				err = peerError(n.Error)
			}
			if err != nil {
				s.cancel(err)
				return
			}
			if n.Done {
				s.done <- n
				return
			}
		}
	})
	s.all.Go(func() {
		tick := time.NewTicker(aliveTime)
		defer tick.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
			}
			if err := alive(); err != nil {
				s.cancel(err)
				return
			}
			if s.send(note{}) != nil {
				return // the reader finds the same
			}
		}
	})
}

// guard ends the context when nothing completes for some time, and reports progress; the returned function ends that.
func (s *session) guard(phase string, progress func(string, int64, time.Duration)) (stop func()) {
	s.count.Store(0)
	start, quit := time.Now(), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		last, since := int64(0), start
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				n := s.count.Load()
				if n != last {
					last, since = n, now
				}
				if now.Sub(since) >= stallTime {
					s.cancel(fmt.Errorf("%s: no message was completed within %v, after %d: one may have been lost, or the other side has ended "+
						"or was given another size or count", phase, stallTime, n))
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

// awaitDone waits until the peer is done.
func (s *session) awaitDone() (note, error) {
	select {
	case n := <-s.done:
		return n, nil
	case <-s.ctx.Done():
		select { // both may be true
		case n := <-s.done:
			return n, nil
		default:
		}
		return note{}, context.Cause(s.ctx)
	}
}
