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

// protocolVersion is the version of the negotiation protocol. Ends with different versions cannot communicate.
const protocolVersion = 1

// exchangeKind is the kind of exchange that a client requests.
type exchangeKind string

const (
	pingPong exchangeKind = "pingpong"
	perf     exchangeKind = "perf"
)

// helloMessage is the first message in each direction.
type helloMessage struct {
	Protocol int              `json:"protocol"`
	Kind     exchangeKind     `json:"kind,omitempty"`
	Error    string           `json:"error,omitempty"` // reason for which the sender ends the exchange
	Params   Params           `json:"params"`
	Ends     []verbs.Endpoint `json:"ends,omitempty"`
	Memory   verbs.Remote     `json:"memory"` // memory that the peer may access
}

// statusMessage is a message after the first hello of each side. The zero note, sent each second, reports that its
// sender is running.
type statusMessage struct {
	Done     bool   `json:"done,omitempty"` // the sender has sent, or received and counted, all its messages
	Received int64  `json:"received,omitempty"`
	Error    string `json:"error,omitempty"` // reason for which the sender ends the exchange
}

// ErrPeer is wrapped by each error that the other end caused.
var ErrPeer = errors.New("the other side")

var (
	errPeerGone = fmt.Errorf("%w has ended the exchange", ErrPeer)
	errForeign  = fmt.Errorf("%w does not speak this protocol", ErrPeer)
)

// newPeerError returns the error text sent by the other end, without control characters that would affect a terminal.
func newPeerError(text string) error {
	const most = 400
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text[:min(len(text), most)])
	return fmt.Errorf("%w: %s", ErrPeer, text)
}

// session is the stream between two ends, with the queue pairs of the local end.
type session struct {
	conn   net.Conn
	reader io.LimitedReader // reads from conn, up to the limit of a message
	dec    *json.Decoder
	out    sync.Mutex      // guards writes to conn
	ctx    context.Context // cancelled at the end of the session, or when an end fails
	cancel context.CancelCauseFunc
	done   chan statusMessage // receives the peer's done note once
	count  atomic.Int64       // messages completed in the current phase
	all    sync.WaitGroup
	end    *localEndpoint // nil before newLocalEndpoint returns
	notes  bool           // true if the peer accepts notes; rdma-core's programs do not
}

const (
	// handshakeTime limits the time until both ends have connected.
	handshakeTime = 20 * time.Second
	// writeTime limits the time until the peer, or the peer's kernel, has accepted a message.
	writeTime = 5 * time.Second
	// stallTime is the longest time without progress of the exchange, or without a note of the peer.
	stallTime = 20 * time.Second
	// aliveTime is the interval between the notes of an end, and between its checks of the device.
	aliveTime = time.Second
	// maxMessage limits the size of a message of the peer in bytes.
	maxMessage = 1 << 18
)

// newSession begins the negotiation over conn. The session closes conn at its end.
func newSession(ctx context.Context, conn net.Conn) *session {
	s := &session{conn: conn, done: make(chan statusMessage, 1), notes: true}
	s.reader.R = conn
	s.dec = json.NewDecoder(&s.reader)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTime))
	s.all.Go(func() {
		<-s.ctx.Done()
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // interrupts reads; close can still write
	})
	return s
}

// close ends the session and destroys the local end. close returns err, or the device failure that caused err, and
// sends the error to the peer.
func (s *session) close(err error) error {
	if s.end != nil && err != nil {
		err = s.end.deviceFailureOf(err)
	}
	if err != nil && s.notes && !errors.Is(err, ErrPeer) {
		_ = s.sendMessage(statusMessage{Error: err.Error()})
	}
	s.cancel(nil)
	_ = s.conn.Close()
	s.all.Wait()
	if s.end != nil {
		err = errors.Join(err, s.end.close())
	}
	return err
}

// sendMessage writes a message.
func (s *session) sendMessage(v any) error {
	s.out.Lock()
	defer s.out.Unlock()
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.writeBytes(append(b, '\n'))
}

func (s *session) writeBytes(b []byte) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeTime))
	_, err := s.conn.Write(b)
	return s.streamError("write to", err)
}

// receiveMessage reads a message.
func (s *session) receiveMessage(v any) error {
	s.reader.N = maxMessage
	err := s.dec.Decode(v)
	if err != nil && s.reader.N <= 0 {
		return fmt.Errorf("%w: its message exceeds %d bytes", errForeign, maxMessage)
	}
	return s.streamError("read from", err)
}

// streamError returns the error of a call on the stream, or the context's cause if the context has ended.
func (s *session) streamError(what string, err error) error {
	var network net.Error
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case errors.As(err, new(*json.SyntaxError)), errors.As(err, new(*json.UnmarshalTypeError)):
		return fmt.Errorf("%w: run the same command at both ends, or `verbena pingpong --compat` with one of rdma-core's programs",
			errForeign)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%s %w: timed out: the peer is stopped, unreachable, or waits for another event", what, ErrPeer)
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, io.ErrUnexpectedEOF):
		return errPeerGone // also matches ECONNRESET
	}
	return fmt.Errorf("%s %w: %w", what, ErrPeer, err)
}

// watchPeer starts the exchange of notes. After watch returns, the context ends when the peer fails or is silent, or
// when alive returns an error. The session calls alive every second.
func (s *session) watchPeer(alive func() error) {
	s.all.Go(func() {
		for {
			var n statusMessage
			_ = s.conn.SetReadDeadline(time.Now().Add(stallTime))
			err := s.receiveMessage(&n)
			if err == nil && n.Error != "" {
				err = newPeerError(n.Error)
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
			if s.sendMessage(statusMessage{}) != nil {
				return // the reader receives the same error
			}
		}
	})
}

// watchStall cancels the context if no message completes for stallTime, and reports progress. The caller ends the guard
// by calling stop.
func (s *session) watchStall(phase string, progress func(string, int64, time.Duration)) (stop func()) {
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
					s.cancel(fmt.Errorf("%s: no message completed within %v, after %d: a message may have been lost, or the other side has ended "+
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

// awaitPeerDone waits for the peer's done note.
func (s *session) awaitPeerDone() (statusMessage, error) {
	select {
	case n := <-s.done:
		return n, nil
	case <-s.ctx.Done():
		select { // both channels may be ready at once
		case n := <-s.done:
			return n, nil
		default:
		}
		return statusMessage{}, context.Cause(s.ctx)
	}
}
