package rights

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxDescriptors is the largest number of descriptors in one message. (SCM_MAX_FD)
const maxDescriptors = 253

// soPassRights is SO_PASSRIGHTS, which golang.org/x/sys does not define yet.
const soPassRights = 83

// RefuseDescriptors makes the kernel refuse descriptors for a socket, with EPERM for the sender. Before Linux 6.16
// RefuseDescriptors returns ENOPROTOOPT, and Receive with a Queue must suffice.
func RefuseDescriptors(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0); err != nil {
		return fmt.Errorf("refuse descriptors: SO_PASSRIGHTS: %w", err)
	}
	return nil
}

// receivedMessage is a received message, or a part of a stream.
type receivedMessage struct {
	N       int     // number of bytes
	Files   []int   // descriptors, at most as many as requested; the caller closes them by the Queue
	Surplus int     // number of surplus descriptors, which were closed
	Control bool    // the message had control data
	Sender  *Sender // sender, or nil if unknown (see SO_PASSCRED)
}

// Sender is the process that sent a message, as reported by the kernel. (SCM_CREDENTIALS)
type Sender struct{ PID, UID int }

// controlPool holds buffers for all control data of one message.
var controlPool = sync.Pool{New: func() any {
	b := make([]byte, unix.CmsgSpace(4*maxDescriptors)+unix.CmsgSpace(unix.SizeofUcred))
	return &b
}}

// Receive waits for a message, or for some bytes of a stream. Receive returns the message with at most most
// descriptors. Receive closes further descriptors by the Queue. Like a read of the socket, Receive returns
// os.ErrDeadlineExceeded, or an error for a closed socket. A message without bytes and control data is the end of
// the stream.
func (q *Queue) Receive(c syscall.RawConn, b []byte, most int) (receivedMessage, error) {
	counted := false
	for {
		m, err := q.receive(c, b, most, counted)
		if err != errTooManyClosingFDs {
			return m, err
		}
		// A counted attempt does not wait if there is no message. The next, uncounted attempt waits.
		counted = !counted && q.awaitReceiveRoom()
	}
}

// AwaitMessage waits until a message or the end of the stream can be received. AwaitMessage is for a caller that holds
// no memory during the wait.
func AwaitMessage(c syscall.RawConn) error {
	return c.Read(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// errTooManyClosingFDs means that the user has too many messages with descriptors in progress, or that a counted
// attempt found no message.
var errTooManyClosingFDs = errors.New("too many descriptors of the user are being closed")

// receive is like Receive, but returns errTooManyClosingFDs instead of waiting. If counted is true, the message has
// already been counted.
//
//verbena:receives
func (q *Queue) receive(c syscall.RawConn, b []byte, most int, counted bool) (m receivedMessage, err error) {
	oob := controlPool.Get().(*[]byte)
	defer controlPool.Put(oob)
	var control int
	called := false
	rerr := c.Read(func(fd uintptr) bool {
		called = true
		if !counted && !q.beginReceiving() {
			err = errTooManyClosingFDs
			return true // this function must not wait, since the socket could then not be closed
		}
		for {
			m.N, control, _, _, err = unix.Recvmsg(int(fd), b, *oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.EAGAIN {
			q.endReceiving()
			if counted {
				err = errTooManyClosingFDs
			}
			return counted
		}
		ordered(fd)
		return true
	})
	if rerr != nil {
		if counted && !called {
			q.endReceiving()
		}
		return m, rerr // the function has ended without a message
	}
	if err == errTooManyClosingFDs {
		return m, err
	}
	defer q.endReceiving()
	if err != nil {
		return receivedMessage{}, os.NewSyscallError("recvmsg", err)
	}
	m.Control = control > 0
	if err := m.parseControlData((*oob)[:control]); err != nil {
		return m, err
	}
	if len(m.Files) > most {
		q.CloseAll(m.Files[most:])
		m.Surplus = len(m.Files) - most
		m.Files = m.Files[:most]
	}
	return m, nil
}

// parseControlData extracts descriptors and credentials from control data.
func (m *receivedMessage) parseControlData(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("malformed control message: %w", err)
	}
	for i := range list {
		if fds, err := unix.ParseUnixRights(&list[i]); err == nil {
			m.Files = append(m.Files, fds...)
		} else if c, err := unix.ParseUnixCredentials(&list[i]); err == nil {
			m.Sender = &Sender{PID: int(c.Pid), UID: int(c.Uid)}
		}
	}
	return nil
}

// Reader reads a stream of a user. The Queue closes descriptors that come with the stream.
func (q *Queue) Reader(c syscall.RawConn) io.Reader { return &streamReader{q, c} }

type streamReader struct {
	queue *Queue
	conn  syscall.RawConn
}

func (r *streamReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	m, err := r.queue.Receive(r.conn, b, 0)
	if err == nil && m.N == 0 {
		err = io.EOF
	}
	return m.N, err
}

// awaitReceiveRoom counts a message as soon as there is room for another message. It returns false after some time,
// since the socket may have been closed meanwhile. Waiting threads get room in the order of their arrival. If they
// polled for room, many threads could take it from one another forever.
func (q *Queue) awaitReceiveRoom() bool {
	if q == nil {
		return true
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case q.receiving <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}
