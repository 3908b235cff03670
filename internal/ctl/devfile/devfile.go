// Package devfile implements the protocol of a connection that represents an open device file of a service. A
// program uses such a connection instead of a descriptor of the file if the service does not trap its system calls.
//
// The connection begins as a connection of package ctl, with the request OpOpen. After the answer the service sends
// an [Answer] with the descriptors of [Opened]. From then on the client sends [Request] messages, and receives one
// Answer for each, in order. Closing the connection closes the file.
//
// # Memory
//
// The service accesses only memory of the client that both share, or that the client has explicitly passed to the
// service ([OpMemory]). The shared memory is in two files of the service, sealed against truncation. The queue file
// is mapped like a device file, at the offsets in responses to commands. In the buffer file, the client gets a
// range by [OpAlloc], and maps the range at an address that it has announced. Commands contain these addresses. The
// commands themselves and their responses are also in the buffer file.
//
// # Doorbells
//
// The service polls the send queues of its clients while there is work. After a post, the client checks the control
// word ([Awake]) in the buffer file. The client writes to the doorbell, an eventfd, only if the word says that the
// service sleeps. The service writes the word before its last check of the queues, and the client reads the word
// after writing the queue's index. Therefore at least one of them detects the other's write.
//
// # Descriptors
//
// Closing a descriptor can block for a time that its creator controls, for example a socket with SO_LINGER or a
// file of a FUSE server. Therefore the service receives descriptors only with the one request that requires them.
// If descriptors come with any other request, the service ends the connection.
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

// Op is the kind of a request.
type Op uint32

// The requests.
const (
	// OpWrite is a write(2) of a command, N bytes at Addr.
	OpWrite Op = iota + 1
	// OpIoctl is an ioctl(2) with RDMA_VERBS_IOCTL and its argument at Addr.
	OpIoctl
	// OpAlloc requests N bytes of the buffer file, which the client maps at Addr. Both N and Addr are multiples of the
	// page size. Answer.N is the offset in the buffer file. The range is freed when the device file is closed.
	OpAlloc
	// OpMemory gives the service access to the client's whole memory, by descriptors of /proc/self/mem and
	// /proc/self/maps. The client itself has opened both files, so they stay bound to an address space that the
	// client may access. After OpMemory, Addr may be any address of the client.
	OpMemory
	// OpForget reports that the client has closed the event file with number N.
	OpForget
)

// NumMemoryFiles is the number of descriptors sent with OpMemory.
const NumMemoryFiles = 2

// Request is a message of a client.
type Request struct {
	Op   Op
	Addr uint64
	N    uint64
}

const encodedRequestSize = 24

// Answer is a message of the service.
type Answer struct {
	Errno syscall.Errno
	N     uint64
	// Number identifies the descriptor of the answer in commands; 0 means no descriptor. (The first answer has
	// several descriptors, see Opened.)
	Number uint32
	Text   string // text of an error
}

const (
	answerSize = 24
	maxText    = 4 << 10
)

// Err returns the error of the answer, which wraps its errno, or nil.
func (a *Answer) Err() error {
	if a.Errno == 0 {
		return nil
	}
	if a.Text == "" {
		return a.Errno
	}
	return &serviceError{a.Text, a.Errno}
}

// serviceError is an error of the service.
type serviceError struct {
	text  string
	errno syscall.Errno
}

func (f *serviceError) Error() string { return f.text }
func (f *serviceError) Unwrap() error { return f.errno }

// The following constants are the descriptors of the first answer, in their order. The connection manager's file
// has no queues and no doorbell.
const (
	// Signal is a stream socket. The service closes its end of Signal when it closes the file, or ends. The
	// connection manager sends a byte on Signal when there are events. The service receives no data on Signal.
	Signal = iota
	BufferFile
	QueueFile
	// Doorbell is an eventfd(2). The service never reads the eventfd.
	Doorbell
	Opened // number of descriptors
)

// The following constants are the values of the control word, a uint32 at the start of the buffer file. The service
// writes the control word.
const (
	Asleep uint32 = iota // the client must write to the doorbell after a post
	Awake
	Gone // the device was removed, and the client must not post requests any more
)

// ControlAreaSize is the size of the area with the control word, in bytes.
const ControlAreaSize = 4

// Conn is a connection that represents a device file.
type Conn struct {
	*net.UnixConn
	// Rights closes surplus descriptors of the peer; nil for a trusted peer.
	Rights *rights.Queue
}

// SendRequest sends a request and its descriptors. It may sleep.
func (c Conn) SendRequest(r Request, fds ...int) error {
	var b [encodedRequestSize]byte
	binary.LittleEndian.PutUint32(b[:], uint32(r.Op))
	binary.LittleEndian.PutUint64(b[8:], r.Addr)
	binary.LittleEndian.PutUint64(b[16:], r.N)
	return c.sendWithFiles(b[:], fds)
}

func (c Conn) sendWithFiles(b []byte, fds []int) error {
	if len(fds) == 0 {
		_, err := c.Write(b)
		return err
	}
	sent, err := c.Rights.ChargeInFlightFDs(c, len(fds))
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

// ReceiveRequest receives a request and its descriptors, at most NumMemoryFiles. The caller must close the descriptors,
// also after an error. rest is the time limit for the rest of a partial request. ReceiveRequest may sleep.
// ReceiveRequest returns io.EOF at the end of the connection.
func (c Conn) ReceiveRequest(rest time.Duration) (r Request, fds []int, err error) {
	var b [encodedRequestSize]byte
	if fds, err = c.receiveWithFiles(b[:], NumMemoryFiles, rest); err != nil {
		return r, fds, err
	}
	return Request{
		Op: Op(binary.LittleEndian.Uint32(b[:])), Addr: binary.LittleEndian.Uint64(b[8:]), N: binary.LittleEndian.Uint64(
			b[16:]),
	}, fds, nil
}

// receiveWithFiles fills b, and returns the descriptors that came with its first byte, also with an error. More than
// most descriptors are an error. rest limits the time after the first bytes; 0 means that no further bytes are
// expected.
func (c Conn) receiveWithFiles(b []byte, most int, rest time.Duration) (fds []int, err error) {
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
		err = fmt.Errorf("message with %d descriptors exceeds the limit of %d: %w", len(m.Files)+m.Surplus, most,
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

// SendAnswer sends an answer and its descriptors. The caller keeps the descriptors. It may sleep.
func (c Conn) SendAnswer(a Answer, fds ...int) error {
	text := a.Text[:min(len(a.Text), maxText)]
	b := make([]byte, answerSize, answerSize+len(text))
	binary.LittleEndian.PutUint32(b[0:], uint32(a.Errno))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(text)))
	binary.LittleEndian.PutUint64(b[8:], a.N)
	binary.LittleEndian.PutUint32(b[16:], a.Number)
	return c.sendWithFiles(append(b, text...), fds)
}

// ReceiveAnswer receives an answer and its descriptors, which the caller must close. It may sleep. ReceiveAnswer
// returns io.EOF at the end of the connection.
//
//verbena:allow receive a client trusts its service
func (c Conn) ReceiveAnswer() (a Answer, fds []int, err error) {
	var b [answerSize]byte
	if fds, err = c.receiveWithFiles(b[:], Opened, 0); err != nil {
		CloseAll(fds)
		return a, nil, err
	}
	a.Errno = syscall.Errno(binary.LittleEndian.Uint32(b[0:]))
	a.N = binary.LittleEndian.Uint64(b[8:])
	a.Number = binary.LittleEndian.Uint32(b[16:])
	if n := binary.LittleEndian.Uint32(b[4:]); n > 0 {
		if n > maxText {
			CloseAll(fds)
			return a, nil, fmt.Errorf("announced error text of %d bytes exceeds the limit of %d: %w", n, maxText, syscall.EPROTO)
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
