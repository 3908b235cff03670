package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"verbena/capture"
	"verbena/internal/ctl"
	"verbena/link"
)

// packetRecording is a packet capture in progress.
type packetRecording struct {
	dev  string
	rec  *capture.Recorder
	taps map[*rdmaLink]link.Tap
}

// addTap adds the recording's tap to a device.
func (r *packetRecording) addTap(l *rdmaLink) {
	if r.dev != "" && r.dev != l.spec.Name {
		return
	}
	var where []string
	for _, e := range l.dev.Endpoints() {
		where = append(where, e.Addr().String())
	}
	tap := r.rec.NewInterfaceTap(l.spec.Name, fmt.Sprintf("%s on %s", strings.Join(where, " "), l.host.Name))
	r.taps[l] = tap
	l.taps.Add(tap)
}

func (r *packetRecording) removeTap(l *rdmaLink) {
	if tap := r.taps[l]; tap != nil {
		l.taps.Remove(tap)
		delete(r.taps, l)
	}
}

// capturePackets records packets into the socket until the client or the request ends it. capturePackets closes the
// socket.
//
//verbena:allow close the socket of a manager
func (s *Service) capturePackets(c *ctl.Capture, socket *os.File) error {
	filter, err := capture.ParseFilter(c.Filter)
	if err != nil {
		socket.Close()
		return fmt.Errorf("capture: %w: %w", err, syscall.EINVAL)
	}
	to, err := ctl.NewConn(socket)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	if s.ended.Err() != nil {
		to.Close()
		return fmt.Errorf("capture: the service ends: %w", syscall.ESHUTDOWN)
	}
	if c.Dev != "" && s.links.find(c.Dev) == nil || len(s.links.list) == 0 {
		to.Close()
		return s.links.noLinkError(c.Dev)
	}
	r := &packetRecording{
		dev: c.Dev, taps: map[*rdmaLink]link.Tap{},
		rec: capture.New(ctl.PieceWriter{Conn: to}, capture.Options{Filter: filter, Count: c.Count}),
	}
	for _, l := range s.links.list {
		r.addTap(l)
	}
	s.links.recordings[r] = struct{}{}
	s.programs.addToCount(1)
	s.recorders.Go(func() {
		defer s.programs.addToCount(-1)
		s.awaitCaptureEnd(r, ctl.PieceWriter{Conn: to})
	})
	return nil
}

// captureEndTimeout is the time that an ending service allows a capture for its last writes.
const captureEndTimeout = 5 * time.Second

// awaitCaptureEnd waits for the end of a recording, and reports its summary to the client.
//
//verbena:allow receive the socket of a manager
func (s *Service) awaitCaptureEnd(r *packetRecording, c ctl.PieceWriter) {
	defer c.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		io.Copy(io.Discard, c.UnixConn) // the client closes its end to stop the capture
	}()
	select {
	case <-closed:
	case <-r.rec.Done():
	case <-s.ended.Done():
		c.SetWriteDeadline(time.Now().Add(captureEndTimeout)) // limits the time of the writes if the client does not read
	}
	s.links.mu.Lock()
	delete(s.links.recordings, r)
	for _, l := range s.links.list {
		r.removeTap(l)
	}
	s.links.mu.Unlock()
	sum, err := r.rec.Close()
	end := ctl.CaptureEnd{Packets: sum.Packets, Dropped: sum.Dropped}
	if err != nil {
		end.Error = err.Error()
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			s.log.Info("capture: the client has disconnected")
			return
		}
		s.log.Warn("capture", "err", err)
	}
	_ = c.SendEnd(&end) // an error means a disconnected client
}
