package ctl

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/rights"
)

// The following constants are the limits of a message, in bytes without its length field.
const (
	MaxResponse   = 64 << 20
	MaxRequest    = 64 << 10
	MaxHelpAnswer = 4 << 10
)

// Conn carries messages. A message is four bytes with the length, then JSON. A descriptor travels with the first
// byte of a message.
type Conn struct {
	*net.UnixConn
	// Rights closes descriptors of the peer that Receive does not return; nil for a trusted peer.
	Rights *rights.Queue
}

// NewConn takes ownership of the descriptor of a Unix socket. NewConn closes f, also on failure.
//
//verbena:allow close the socket of a manager, or of a client that trusts its service
func NewConn(f *os.File) (Conn, error) {
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return Conn{}, err
	}
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		nc.Close()
		return Conn{}, fmt.Errorf("descriptor %s is not a Unix socket: %w", f.Name(), unix.ENOTSOCK)
	}
	return Conn{UnixConn: uc}, nil
}

// Send sends v, and a descriptor unless fd is nil. The caller keeps fd. It may sleep.
func (c Conn) Send(v any, fd *os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > MaxResponse {
		return fmt.Errorf("message of %d bytes is longer than %d", len(body), MaxResponse)
	}
	msg := append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	if fd == nil {
		_, err = c.Write(msg)
		return err
	}
	sent, err := c.Rights.ChargeInFlightFDs(c, 1)
	if err != nil {
		return err
	}
	defer sent()
	n, _, err := c.WriteMsgUnix(msg, unix.UnixRights(int(fd.Fd())), nil)
	if err == nil && n < len(msg) {
		_, err = c.Write(msg[n:])
	}
	return err
}

// MessageLimits holds the limits of a message to receive.
type MessageLimits struct {
	Size  uint32        // size in bytes, without the length field
	Whole time.Duration // time limit for the arrival of the message; 0 means no limit
	Rest  time.Duration // without Whole, time limit from the first bytes of the message to its end; 0 means no limit
}

// Receive receives one message into v, and returns its descriptor, or nil. With a time limit, Receive clears the
// read deadline of the connection afterwards. It may sleep.
func (c Conn) Receive(v any, l MessageLimits) (*os.File, error) {
	if l.Whole > 0 {
		c.SetReadDeadline(time.Now().Add(l.Whole))
		defer c.SetReadDeadline(time.Time{})
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var head [lengthFieldSize]byte
	m, err := c.Rights.Receive(raw, head[:], 1)
	if err != nil {
		return nil, err
	}
	var fd *os.File
	if len(m.Files) > 0 {
		fd = os.NewFile(uintptr(m.Files[0]), "passed descriptor")
	}
	if l.Rest > 0 && l.Whole == 0 {
		c.SetReadDeadline(time.Now().Add(l.Rest))
		defer c.SetReadDeadline(time.Time{})
	}
	if err := decodeMessage(io.MultiReader(bytes.NewReader(head[:m.N]), c.Rights.Reader(raw)), v, l.Size); err != nil {
		c.Discard(fd)
		return nil, err
	}
	return fd, nil
}

// lengthFieldSize is the length of a message's length field.
const lengthFieldSize = 4

// decodeMessage reads one message of at most most bytes from r into v. It returns io.EOF if there is no message.
// decodeMessage allocates memory for the bytes read, not for the announced length.
//
//verbena:parses
func decodeMessage(r io.Reader, v any, most uint32) error {
	var head [lengthFieldSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > most {
		return fmt.Errorf("message of %d bytes is longer than %d", size, most)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return err
	}
	if len(body) < int(size) {
		return io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("malformed message: %s", ClipText(err.Error()))
	}
	return nil
}

// Discard closes a received descriptor, unless it is nil. Discard can block for a time that the peer controls.
//
//verbena:closes
func (c Conn) Discard(f *os.File) {
	if f != nil {
		c.Rights.RunClose(func() { f.Close() })
	}
}

// DrainAndClose closes the connection, and the descriptors in unread messages of the peer. DrainAndClose may sleep,
// like rights.Queue.Do.
func (c Conn) DrainAndClose() { c.Rights.DrainAndClose(c.UnixConn) }

// ClipText shortens text of a peer to a length suitable for a message or the log.
func ClipText(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
