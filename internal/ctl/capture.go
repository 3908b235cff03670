package ctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Capture requests a pcapng file of the packets of the devices. The service sends the file in pieces on the stream
// socket that comes with the request. A client ends the capture early by shutting the socket down for writing.
type Capture struct {
	Dev    string `json:",omitempty"` // empty for all devices, including later ones
	Filter string `json:",omitempty"` // in the syntax of capture.ParseFilter
	Count  uint64 `json:",omitempty"` // number of packets after which the capture ends, or 0 for no end
}

// CaptureEnd is the result of a capture, in packets.
type CaptureEnd struct {
	Packets uint64 `json:"packets"` // packets in the file
	Dropped uint64 `json:"dropped"` // packets that passed the filter but did not fit into the buffer
	Error   string `json:",omitempty"`
}

// PieceWriter sends a file as a sequence of pieces. A piece is four bytes with the length, then the data. A piece
// of length 0 ends the file, and a CaptureEnd follows as a message.
type PieceWriter struct{ Conn }

// Write sends a piece. It may sleep.
func (p PieceWriter) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	var head [lengthFieldSize]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(b)))
	if _, err := (&net.Buffers{head[:], b}).WriteTo(p.UnixConn); err != nil {
		return 0, err
	}
	return len(b), nil
}

// SendEnd sends the end of the file. It may sleep.
func (p PieceWriter) SendEnd(end *CaptureEnd) error {
	if _, err := p.UnixConn.Write(make([]byte, lengthFieldSize)); err != nil {
		return err
	}
	return p.Send(end, nil)
}

// CaptureStream is the client's end of a capture.
type CaptureStream struct {
	c    Conn
	left int // bytes left in the current piece
	end  *CaptureEnd
}

// Capture starts a capture. The caller reads the file from the stream, and closes the stream. It may sleep.
func (c *Client) Capture(r Capture) (*CaptureStream, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "capture"), os.NewFile(uintptr(fds[1]), "capture")
	defer theirs.Close()
	sc, err := NewConn(ours)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if _, err := c.doWithFile(&Request{Op: OpCapture, Capture: &r}, theirs); err != nil {
		sc.Close()
		return nil, err
	}
	return &CaptureStream{c: sc}, nil
}

// Read reads the file, up to io.EOF. Read may sleep.
//
//verbena:allow receive a client trusts its service
func (s *CaptureStream) Read(b []byte) (int, error) {
	for s.left == 0 {
		if s.end != nil {
			return 0, io.EOF
		}
		var head [lengthFieldSize]byte
		if _, err := io.ReadFull(s.c, head[:]); err != nil {
			return 0, fmt.Errorf("capture: the service has ended: %w", io.ErrUnexpectedEOF)
		}
		if s.left = int(binary.LittleEndian.Uint32(head[:])); s.left > 0 {
			break
		}
		var end CaptureEnd
		f, err := s.c.Receive(&end, MessageLimits{Size: MaxRequest})
		if err != nil {
			return 0, fmt.Errorf("capture: %w", err)
		}
		s.c.Discard(f)
		s.end = &end
	}
	n, err := s.c.Read(b[:min(len(b), s.left)])
	s.left -= n
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// RequestEnd requests the end of the capture. Read then returns the rest of the file.
func (s *CaptureStream) RequestEnd() { s.c.CloseWrite() }

// Result returns the result of the capture, once Read has returned io.EOF.
func (s *CaptureStream) Result() CaptureEnd {
	if s.end == nil {
		return CaptureEnd{}
	}
	return *s.end
}

// Close ends the capture, even if the file was not read to its end.
func (s *CaptureStream) Close() error { return s.c.Close() }
