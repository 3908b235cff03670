// Package devfile is the protocol of a connection to a service that stands for an open device file: what a program does
// with a descriptor of the file, where the service does not trap its system calls.
//
// The connection begins as one of package ctl, with the request OpOpen. When that has been answered the service sends
// an [Answer] that brings the descriptors of [Opened]; from then on the client asks with a [Request], and gets one
// Answer for each, in order. Closing the connection closes the file.
//
// # Memory
//
// The service touches no memory of the client but what the two share, and what the client has handed over explicitly
// ([OpMemory]). Shared are two files that the service has made and that cannot be made shorter. The queue file is
// mapped as a device file is, at the offsets that responses to commands name. Of the buffer file the client gets a
// range by [OpAlloc], and maps it where it has said: commands name it by those addresses. Commands themselves, and the
// places for their responses, lie in there as well.
//
// # Doorbells
//
// The service polls the send queues of its clients while there is something to do. A client that has posted looks at
// the control word ([Awake]) in the buffer file, and adds to the doorbell, an eventfd, only where that says that the
// service sleeps. The service writes the word before it looks at the queues for the last time, and the client reads it
// after it has written the queue's index: one of them sees the other.
//
// # Descriptors
//
// The close of a descriptor may take as long as whoever has made it likes: that of a socket that lingers, or of a file
// of a FUSE server. So the service receives descriptors on nothing but the connection, with the one request that takes
// some; any others end the connection.
package devfile

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/rights"
)

// ConnectionManager is the name of the device file of the connection manager.
const ConnectionManager = "rdma_cm"

// Op says what a client asks for.
type Op uint32

// The requests.
const (
	// OpWrite is a write(2) of a command, N bytes at Addr.
	OpWrite Op = iota + 1
	// OpIoctl is an ioctl(2) with RDMA_VERBS_IOCTL, whose argument is at Addr.
	OpIoctl
	// OpAlloc asks for N bytes of the buffer file, for the client to map at Addr. Both are multiples of the page size.
	// Answer.N is the offset in the file. They stay until the file is closed.
	OpAlloc
	// OpMemory hands over the client's whole memory: /proc/self/mem and /proc/self/maps come with it, which the client has
	// opened itself, so that they are of one address space that it may access, and stay so. From then on Addr may be
	// anywhere.
	OpMemory
	// OpForget says that the client has closed the event file whose number is N.
	OpForget
)

// MemoryFiles is how many descriptors come with OpMemory.
const MemoryFiles = 2

// Request is what a client sends.
type Request struct {
	Op   Op
	Addr uint64
	N    uint64
}

const requestSize = 24

// Answer is what the service sends.
type Answer struct {
	Errno syscall.Errno
	N     uint64
	// Number is by which commands name the descriptor that comes with the answer; 0: none comes. (The first answer, see
	// Opened, has several.)
	Number uint32
	Text   string // of an error, for people
}

const (
	answerSize = 24
	maxText    = 4 << 10
)

// Err returns the error of the answer, which wraps its errno; nil if there is none.
func (a *Answer) Err() error {
	if a.Errno == 0 {
		return nil
	}
	if a.Text == "" {
		return a.Errno
	}
	return &failure{a.Text, a.Errno}
}

// failure is the service's error.
type failure struct {
	text  string
	errno syscall.Errno
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.errno }

// The descriptors that come with the first answer, in their order. The connection manager's file has no queues and no
// doorbell.
const (
	// Signal is a stream socket whose other end is closed when the service closes the file, or ends. The connection
	// manager sends a byte on it when there are events. The service receives nothing on it.
	Signal = iota
	BufferFile
	QueueFile
	// Doorbell is an eventfd(2). The service never reads it.
	Doorbell
	Opened // how many
)

// The values of the control word, a uint32 at the start of the buffer file. The service writes it.
const (
	Asleep uint32 = iota // ring the bell after a post
	Awake
	Gone // the device has gone: nothing is posted any more
)

// ControlSize is the length of what the word is in, in bytes.
const ControlSize = 4

// Conn is a connection.
type Conn struct {
	*net.UnixConn
	// Rights closes descriptors of the peer that are surplus. nil is for a peer that is trusted.
	Rights *rights.Queue
}

// Ask sends a request, and descriptors with it. It may sleep.
func (c Conn) Ask(r Request, fds ...int) error {
	var b [requestSize]byte
	binary.LittleEndian.PutUint32(b[:], uint32(r.Op))
	binary.LittleEndian.PutUint64(b[8:], r.Addr)
	binary.LittleEndian.PutUint64(b[16:], r.N)
	return c.send(b[:], fds)
}

func (c Conn) send(b []byte, fds []int) error {
	if len(fds) == 0 {
		_, err := c.Write(b)
		return err
	}
	sent, err := c.Rights.Sending(c, len(fds))
	if err != nil {
		return err
	}
	defer sent()
	n, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// Requested receives a request, and the descriptors that came with it, at most MemoryFiles. They are the caller's to
// close, also after an error. rest is the time limit for the rest of a partial request. Requested may sleep; it returns
// io.EOF at the end.
func (c Conn) Requested(rest time.Duration) (r Request, fds []int, err error) {
	var b [requestSize]byte
	if fds, err = c.receive(b[:], MemoryFiles, rest); err != nil {
		return r, fds, err
	}
	return Request{
		Op: Op(binary.LittleEndian.Uint32(b[:])), Addr: binary.LittleEndian.Uint64(b[8:]), N: binary.LittleEndian.Uint64(
			b[16:]),
	}, fds, nil
}

// receive fills b, and returns the descriptors that came with its first byte, also with an error: it is one if they are
// more than most. rest bounds the time for what follows the first bytes; 0: nothing does.
func (c Conn) receive(b []byte, most int, rest time.Duration) (fds []int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	m, err := c.Rights.Receive(raw, b, most)
	switch {
	case err != nil:
	case m.N == 0:
		err = io.EOF
	case m.Surplus > 0:
		err = fmt.Errorf("%d descriptors came with a message, %d is the limit: %w", len(m.Files)+m.Surplus, most,
			syscall.EPROTO)
	case m.N < len(b):
		if rest > 0 {
			c.SetReadDeadline(time.Now().Add(rest))
			defer c.SetReadDeadline(time.Time{})
		}
		_, err = io.ReadFull(c.Rights.Reader(raw), b[m.N:])
	}
	return m.Files, err
}

// CloseAll closes descriptors.
//
//verbena:allow close a client trusts its service
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Answer sends an answer, and descriptors with it, which stay the caller's. It may sleep.
func (c Conn) Answer(a Answer, fds ...int) error {
	text := a.Text[:min(len(a.Text), maxText)]
	b := make([]byte, answerSize, answerSize+len(text))
	binary.LittleEndian.PutUint32(b[0:], uint32(a.Errno))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(text)))
	binary.LittleEndian.PutUint64(b[8:], a.N)
	binary.LittleEndian.PutUint32(b[16:], a.Number)
	return c.send(append(b, text...), fds)
}

// Answered receives an answer, and the descriptors that came with it, which are the caller's to close. It may sleep;
// io.EOF at the end.
//
//verbena:allow receive a client trusts its service
func (c Conn) Answered() (a Answer, fds []int, err error) {
	var b [answerSize]byte
	if fds, err = c.receive(b[:], Opened, 0); err != nil {
		CloseAll(fds)
		return a, nil, err
	}
	a.Errno = syscall.Errno(binary.LittleEndian.Uint32(b[0:]))
	a.N = binary.LittleEndian.Uint64(b[8:])
	a.Number = binary.LittleEndian.Uint32(b[16:])
	if n := binary.LittleEndian.Uint32(b[4:]); n > 0 {
		if n > maxText {
			CloseAll(fds)
			return a, nil, fmt.Errorf("an error of %d bytes is announced, %d is the limit: %w", n, maxText, syscall.EPROTO)
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(c, text); err != nil {
			CloseAll(fds)
			return a, nil, err
		}
		a.Text = string(text)
	}
	return a, fds, nil
}
