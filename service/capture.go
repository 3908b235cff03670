package service

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/capture"
	"verbena/link"
)

// Capture asks for a pcapng file of what passes the devices. It is sent on a stream socket that comes with the request,
// in pieces of four bytes of length and so many bytes; the last one has length 0, and after it comes a CaptureEnd as a
// message. A client that wants to end it before closes the socket for writing.
type Capture struct {
	Dev    string `json:",omitempty"` // empty: all devices, those too that are added later
	Filter string `json:",omitempty"` // see capture.ParseFilter
	Count  uint64 `json:",omitempty"` // end after so many packets; 0: never
}

// CaptureEnd tells what a capture came to.
type CaptureEnd struct {
	capture.Summary
	Error string `json:",omitempty"`
}

// recording is a capture that goes on.
type recording struct {
	dev  string
	rec  *capture.Recorder
	taps map[*rxeLink]link.Tap
}

// put puts the recording's tap on a device.
func (r *recording) put(l *rxeLink) {
	if r.dev != "" && r.dev != l.spec.Name {
		return
	}
	var where []string
	for _, e := range l.dev.Endpoints() {
		where = append(where, e.Addr().String())
	}
	tap := r.rec.Interface(l.spec.Name, fmt.Sprintf("%s on %s", strings.Join(where, " "), l.host.Name))
	r.taps[l] = tap
	l.taps.Add(tap)
}

func (r *recording) remove(l *rxeLink) {
	if tap := r.taps[l]; tap != nil {
		l.taps.Remove(tap)
		delete(r.taps, l)
	}
}

// Capture records packets into the socket until the client or the request ends it. It closes the socket.
func (s *Service) Capture(c *Capture, socket *os.File) error {
	filter, err := capture.ParseFilter(c.Filter)
	if err != nil {
		socket.Close()
		return fmt.Errorf("capture: %w: %w", err, syscall.EINVAL)
	}
	nc, err := net.FileConn(socket)
	socket.Close()
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		nc.Close()
		return fmt.Errorf("capture: the descriptor is not a Unix socket: %w", syscall.ENOTSOCK)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Err() != nil {
		uc.Close()
		return fmt.Errorf("capture: the service ends: %w", syscall.ESHUTDOWN)
	}
	if c.Dev != "" && s.find(c.Dev) == nil || len(s.links) == 0 {
		uc.Close()
		return s.noLink(c.Dev)
	}
	r := &recording{
		dev: c.Dev, taps: map[*rxeLink]link.Tap{},
		rec: capture.New(pieces{uc}, capture.Options{Filter: filter, Count: c.Count}),
	}
	for _, l := range s.links {
		r.put(l)
	}
	s.recordings[r] = struct{}{}
	s.countProgram(1)
	s.recorders.Go(func() {
		defer s.countProgram(-1)
		s.record(r, conn{UnixConn: uc})
	})
	return nil
}

// endTime is what a service that ends gives a capture to be written.
const endTime = 5 * time.Second

// record waits until a recording is over.
func (s *Service) record(r *recording, c conn) {
	defer c.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		io.Copy(io.Discard, c) // the client closes its end when it wants no more
	}()
	select {
	case <-closed:
	case <-r.rec.Done():
	case <-s.ended.Done():
		c.SetWriteDeadline(time.Now().Add(endTime)) // whether the client reads or not
	}
	s.mu.Lock()
	delete(s.recordings, r)
	for _, l := range s.links {
		r.remove(l)
	}
	s.mu.Unlock()
	sum, err := r.rec.Close()
	end := CaptureEnd{Summary: sum}
	if err != nil {
		end.Error = err.Error()
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			s.log.Info("capture: the client has gone")
			return
		}
		s.log.Warn("capture", "err", err)
	}
	if _, err := c.Write(make([]byte, 4)); err == nil {
		c.send(&end, nil)
	}
}

// pieces writes a file as a sequence of pieces.
type pieces struct{ c *net.UnixConn }

func (p pieces) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	var head [4]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(b)))
	if _, err := (&net.Buffers{head[:], b}).WriteTo(p.c); err != nil {
		return 0, err
	}
	return len(b), nil
}

// CaptureStream is the client's end of a capture.
type CaptureStream struct {
	c    conn
	left int // of the present piece
	end  *CaptureEnd
}

// Capture starts a capture. The caller reads the file from the stream, and closes that.
func (c *Client) Capture(r Capture) (*CaptureStream, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "capture"), os.NewFile(uintptr(fds[1]), "capture")
	defer ours.Close()
	defer theirs.Close()
	nc, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if _, err := c.do(&Request{Op: OpCapture, Capture: &r}, theirs); err != nil {
		nc.Close()
		return nil, err
	}
	return &CaptureStream{c: conn{UnixConn: nc.(*net.UnixConn)}}, nil
}

// Read reads the file, up to io.EOF.
func (s *CaptureStream) Read(b []byte) (int, error) {
	for s.left == 0 {
		if s.end != nil {
			return 0, io.EOF
		}
		var head [4]byte
		if _, err := io.ReadFull(s.c, head[:]); err != nil {
			return 0, fmt.Errorf("capture: the service has ended: %w", io.ErrUnexpectedEOF)
		}
		if s.left = int(binary.LittleEndian.Uint32(head[:])); s.left > 0 {
			break
		}
		var end CaptureEnd
		if _, err := s.c.receive(&end); err != nil {
			return 0, fmt.Errorf("capture: %w", err)
		}
		s.end = &end
	}
	n, err := s.c.Read(b[:min(len(b), s.left)])
	s.left -= n
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Stop asks for the end of the capture; Read goes on up to it.
func (s *CaptureStream) Stop() { s.c.CloseWrite() }

// End is what the capture came to, once Read has returned io.EOF.
func (s *CaptureStream) End() CaptureEnd {
	if s.end == nil {
		return CaptureEnd{}
	}
	return *s.end
}

// Close ends the capture, whether all of it was read or not.
func (s *CaptureStream) Close() error { return s.c.Close() }
