package measure

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"verbena/verbs"
)

// This file implements the protocol of rdma-core's ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong. Each side
// sends its address as text, the client first. Then the client sends "done". The user must give the same parameters
// to both sides.

const (
	compatFormat = "%04x:%06x:%06x:%s"
	compatSize   = len("0000:000000:000000:") + 32 + 1 // includes the terminating NUL
	compatDone   = "done\x00"
)

// formatCompatAddress formats an address as LID, queue pair, PSN and GID: LID, queue pair, PSN and GID.
func formatCompatAddress(e verbs.Endpoint) []byte {
	return append(fmt.Appendf(nil, compatFormat, 0, e.QPN, e.PSN, hex.EncodeToString(e.GID[:])), 0)
}

func parseCompatAddress(b []byte) (e verbs.Endpoint, err error) {
	var lid uint32
	var gid string
	if _, err := fmt.Sscanf(string(b[:len(b)-1]), "%x:%x:%x:%s", &lid, &e.QPN, &e.PSN, &gid); err != nil {
		return e, fmt.Errorf("%w sends %q instead of an address: use --compat only with rdma-core's programs, and at both ends of two verbena commands",
			ErrPeer, b)
	}
	g, err := hex.DecodeString(gid)
	if err != nil || len(g) != len(e.GID) {
		return e, fmt.Errorf("%w sends GID %q, want 32 hexadecimal digits", ErrPeer, gid)
	}
	copy(e.GID[:], g)
	if e.GID == (verbs.GID{}) {
		return e, fmt.Errorf("%w sends no GID: give its command a GID index, such as -g 1", ErrPeer)
	}
	e.QKey = verbs.DefaultQKey
	return e, nil
}

// CompatPingPong runs one side of a ping-pong with one of rdma-core's programs, and closes conn at the end. Op must be
// Send and Iters must be set; MTU should be 1024.
func CompatPingPong(ctx context.Context, dev *verbs.Device, conn net.Conn, client bool, p Params,
	l LocalParams) (_ *Result,
	err error) {
	p.QPs, p.Depth = 1, pingPongRoom
	s := newSession(ctx, conn)
	s.notes = false
	defer func() { err = s.close(err) }()
	if err := p.Check(); err != nil {
		return nil, err
	}
	if p.Op != Send || p.Iters == 0 {
		return nil, errors.New("a ping-pong with rdma-core's programs needs SEND and a number of round trips")
	}
	e, err := s.newEndpoint(dev, p, l, p.Depth, pingPongRoom)
	if err != nil {
		return nil, err
	}
	peer, err := e.exchangeCompatAddresses(s, client)
	if err != nil {
		return nil, err
	}
	if !client {
		start := time.Now()
		defer s.watchStall("ping-pong", l.Progress)()
		n, err := e.answerMessages(s.ctx, s, p.Iters, false)
		if err != nil {
			return nil, err
		}
		took := time.Since(start)
		return &Result{
			Device: dev.Name(), Params: p, Events: l.Events, RoundTrip: newPhase(int64(n), 2, took, p.Size,
				newLatencyHistogram()), Received: int64(n),
		}, nil
	}
	if err := e.connect([]verbs.Endpoint{peer}, verbs.Remote{}); err != nil {
		return nil, err
	}
	if err := s.writeBytes([]byte(compatDone)); err != nil {
		return nil, err
	}
	phase, err := e.measureRoundTrips(s, l, false)
	if err != nil {
		return nil, err
	}
	return &Result{Device: dev.Name(), Params: p, Events: l.Events, RoundTrip: phase, Received: phase.Messages}, nil
}

// exchangeCompatAddresses exchanges addresses. A server answers after it has connected. The client reports that it is
// done after it has connected.
func (e *localEndpoint) exchangeCompatAddresses(s *session, client bool) (peer verbs.Endpoint, err error) {
	own, theirs := formatCompatAddress(e.local[0]), make([]byte, compatSize)
	if client {
		if err := s.writeBytes(own); err != nil {
			return peer, err
		}
	}
	if err := s.readText(theirs); err != nil {
		return peer, err
	}
	if peer, err = parseCompatAddress(theirs); err != nil || client {
		return peer, err
	}
	if err := e.connect([]verbs.Endpoint{peer}, verbs.Remote{}); err != nil {
		return peer, err
	}
	if err := s.writeBytes(own); err != nil {
		return peer, err
	}
	return peer, s.readText(make([]byte, len(compatDone)))
}

func (s *session) readText(b []byte) error {
	_, err := io.ReadFull(s.conn, b)
	return s.streamError("read from", err)
}
