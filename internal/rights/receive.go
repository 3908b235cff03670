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

// maxDescriptors is the largest number of descriptors that one message brings. (SCM_MAX_FD)
const maxDescriptors = 253

// soPassRights is SO_PASSRIGHTS, which golang.org/x/sys does not have yet.
const soPassRights = 83

// Refuse makes the kernel refuse descriptors for a socket: their sender gets EPERM. It returns ENOPROTOOPT before Linux
// 6.16, where Receive and a Queue have to do.
func Refuse(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0); err != nil {
		return fmt.Errorf("refuse descriptors: SO_PASSRIGHTS: %w", err)
	}
	return nil
}

// Message is a received message, or a part of a stream.
type Message struct {
	N       int     // bytes
	Files   []int   // descriptors, at most as many as asked for; the caller closes them, by the Queue
	Surplus int     // descriptors that came beyond these, and were closed
	Control bool    // it had control data
	Sender  *Sender // nil: not known; see SO_PASSCRED
}

// Sender is the process that has sent a message, as the kernel knows it. (SCM_CREDENTIALS)
type Sender struct{ PID, UID int }

// controlPool has buffers with room for all control data of one message.
var controlPool = sync.Pool{New: func() any {
	b := make([]byte, unix.CmsgSpace(4*maxDescriptors)+unix.CmsgSpace(unix.SizeofUcred))
	return &b
}}

// Receive waits for a message, or for some bytes of a stream, and returns it with at most so many descriptors. It
// closes any others, by the Queue. It returns os.ErrDeadlineExceeded, or an error for a closed socket, as reads of the
// socket do. A message of no bytes and no control data is the end.
func (q *Queue) Receive(c syscall.RawConn, b []byte, most int) (Message, error) {
	counted := false
	for {
		m, err := q.receive(c, b, most, counted)
		if err != errBusy {
			return m, err
		}
		// Without a message a counted round does not wait: the next one, uncounted, does.
		counted = !counted && q.awaitReceiving()
	}
}

// Await waits until there is something to receive, or the end. It is for a caller that takes no memory meanwhile.
func Await(c syscall.RawConn) error {
	return c.Read(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// errBusy: the user has too many messages with descriptors under way, or there is no message although one was counted
// already.
var errBusy = errors.New("too many descriptors of the user are being closed")

// receive is Receive, and gives up with errBusy. If counted, the message counts already.
//
//verbena:receives
func (q *Queue) receive(c syscall.RawConn, b []byte, most int, counted bool) (m Message, err error) {
	oob := controlPool.Get().(*[]byte)
	defer controlPool.Put(oob)
	var control int
	called := false
	rerr := c.Read(func(fd uintptr) bool {
		called = true
		if !counted && !q.beginReceiving() {
			err = errBusy
			return true // nothing may wait here: the socket could not be closed
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
				err = errBusy
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
		return m, rerr // the function has not ended with a message
	}
	if err == errBusy {
		return m, err
	}
	defer q.endReceiving()
	if err != nil {
		return Message{}, os.NewSyscallError("recvmsg", err)
	}
	m.Control = control > 0
	if err := m.parse((*oob)[:control]); err != nil {
		return m, err
	}
	if len(m.Files) > most {
		q.CloseAll(m.Files[most:])
		m.Surplus = len(m.Files) - most
		m.Files = m.Files[:most]
	}
	return m, nil
}

// parse takes descriptors and credentials out of control data.
func (m *Message) parse(oob []byte) error {
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

// Reader reads a stream of a user's. Descriptors that come with it are closed by the Queue.
func (q *Queue) Reader(c syscall.RawConn) io.Reader { return &reader{q, c} }

type reader struct {
	queue *Queue
	conn  syscall.RawConn
}

func (r *reader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	m, err := r.queue.Receive(r.conn, b, 0)
	if err == nil && m.N == 0 {
		err = io.EOF
	}
	return m.N, err
}

// awaitReceiving counts a message as soon as there is room for another; false if that takes long, since the socket may
// have been closed meanwhile. Waiting threads get the room in turn: if they only looked whether there was some, many of
// them would take it from one another for ever.
func (q *Queue) awaitReceiving() bool {
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
