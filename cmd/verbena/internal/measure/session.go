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

// protocol is the version of the protocol. Ends of different versions cannot communicate.
const protocol = 1

// kind is the kind of exchange that the client requests.
type kind string

const (
	pingPong kind = "pingpong"
	perf     kind = "perf"
)

// hello is the first message in each direction.
type hello struct {
	Protocol int              `json:"protocol"`
	Kind     kind             `json:"kind,omitempty"`
	Error    string           `json:"error,omitempty"` // reason for which the sender ends
	Params   Params           `json:"params"`
	Ends     []verbs.Endpoint `json:"ends,omitempty"`
	Memory   verbs.Remote     `json:"memory"` // accessible to the peer
}

// note is any later message. The zero note, sent each second, reports that its sender is alive.
type note struct {
	Done     bool   `json:"done,omitempty"` // the sender has sent, or counted, all its messages
	Received int64  `json:"received,omitempty"`
	Error    string `json:"error,omitempty"` // reason for which the sender ends
}

// ErrPeer is wrapped by an error that the other end caused.
var ErrPeer = errors.New("the other side")

var (
	errPeerGone = fmt.Errorf("%w has ended the exchange", ErrPeer)
	errForeign  = fmt.Errorf("%w does not speak this protocol", ErrPeer)
)

// peerError returns the error sent by the other end, without control characters for a terminal.
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
	reader io.LimitedReader // reads from conn
	dec    *json.Decoder
	out    sync.Mutex      // held to write to conn
	ctx    context.Context // cancelled at the end of the session, or when an end fails
	cancel context.CancelCauseFunc
	done   chan note    // receives the peer's done note, once
	count  atomic.Int64 // messages of the phase so far
	all    sync.WaitGroup
	end    *end // nil before newEnd
	notes  bool // the peer accepts notes; rdma-core's programs do not
}

const (
	// handshakeTime limits the time until both ends have connected.
	handshakeTime = 20 * time.Second
	// writeTime limits the time until the peer, or its system, has accepted a message.
	writeTime = 5 * time.Second
	// stallTime is the longest time without progress of the exchange, or without a note of the peer.
	stallTime = 20 * time.Second
	// aliveTime is the interval of the notes of an end, and of its checks of the device.
	aliveTime = time.Second
	// maxMessage limits the size of a message of the peer in bytes.
	maxMessage = 1 << 18
)

// newSession begins the negotiation over conn, which the session closes.
func newSession(ctx context.Context, conn net.Conn) *session {
	s := &session{conn: conn, done: make(chan note, 1), notes: true}
	s.reader.R = conn
	s.dec = json.NewDecoder(&s.reader)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTime))
	s.all.Go(func() {
		<-s.ctx.Done()
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // stop reads; close still writes
	})
	return s
}

// close ends the session and this end. It returns err, or the failure of the device that caused it, and sends the error
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

// explain returns the error of a call on the stream, or the cause of the context if it has ended.
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
		return errPeerGone // includes a reset of the connection
	}
	return fmt.Errorf("%s %w: %w", what, ErrPeer, err)
}

// watch begins the exchange of notes. From now on the context ends when the peer fails or is silent, or when alive
// returns an error. alive is called every second.
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
				return // the reader gets the same error
			}
		}
	})
}

// guard ends the context if nothing completes for stallTime, and reports progress. The caller ends it with stop.
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
		select { // both channels may be ready
		case n := <-s.done:
			return n, nil
		default:
		}
		return note{}, context.Cause(s.ctx)
	}
}
