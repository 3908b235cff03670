package service

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// protocol is raised whenever a request or an answer changes its meaning: the service that a user has running may
// be of another build than the command that talks to it.
const protocol = 4

// Protocol is the number of the control protocol, which service and command have to agree on.
const Protocol = protocol

// maxMessage bounds an answer of the service, in bytes; maxRequest whatever the service receives.
const (
	maxMessage = 64 << 20
	maxRequest = 64 << 10
)

// Request is what a client asks; Op tells which of the other fields count.
type Request struct {
	Protocol int
	Op       Op
	Link     *LinkSpec  `json:",omitempty"`
	Name     string     `json:",omitempty"` // of a link
	Attach   *Attach    `json:",omitempty"`
	Fault    *FaultRule `json:",omitempty"`
	Reset    *DevReset  `json:",omitempty"`
	ID       int        `json:",omitempty"` // of a fault rule
	Capture  *Capture   `json:",omitempty"`
	Trace    *QPTrace   `json:",omitempty"`
	Profile  *Profile   `json:",omitempty"`
}

// Op names a request.
type Op string

const (
	OpAttach     Op = "attach" // with the listener's descriptor; the connection lasts as long as the program
	OpInfo       Op = "info"
	OpStop       Op = "stop"
	OpYield      Op = "yield" // ends a service that was started on demand and is not in use
	OpLinkAdd    Op = "link add"
	OpLinkDel    Op = "link del"
	OpLinkShow   Op = "link show"
	OpResShow    Op = "res show"
	OpDevReset   Op = "dev reset"
	OpDevUnplug  Op = "dev unplug"
	OpDevPlug    Op = "dev plug"
	OpDevHang    Op = "dev hang"
	OpDevShow    Op = "dev show"
	OpFaultAdd   Op = "fault add"
	OpFaultShow  Op = "fault show"
	OpFaultClear Op = "fault clear"
	OpStatShow   Op = "stat show"
	OpQPShow     Op = "qp show"
	OpQPTrace    Op = "qp trace"
	OpProfile    Op = "debug pprof"
	OpCapture    Op = "capture" // with the descriptor of the socket that the file is sent to
)

// Response is the answer. Error is empty on success; Errno then is 0.
type Response struct {
	Error    string           `json:",omitempty"`
	Errno    syscall.Errno    `json:",omitempty"`
	Info     *Info            `json:",omitempty"`
	Attached *Attached        `json:",omitempty"`
	Links    []LinkInfo       `json:",omitempty"`
	Contexts []ContextInfo    `json:",omitempty"`
	Users    []UserInfo       `json:",omitempty"`
	Devs     []DevInfo        `json:",omitempty"`
	Faults   []FaultRuleState `json:",omitempty"`
	ID       int              `json:",omitempty"` // of the fault rule that was added
	Stats    []StatInfo       `json:",omitempty"`
	QPs      []QPStatusInfo   `json:",omitempty"`
	Trace    *QPTraceInfo     `json:",omitempty"`
	Profile  []byte           `json:",omitempty"`
}

// Attach describes the program that is about to start.
type Attach struct {
	Args  []string // of the program, for people to read; cut if they are long
	Trace bool     `json:",omitempty"` // the answer comes with a socket, on which the service sends the trace of the program's calls
}

// Attached tells the launcher what it needs as the program's guardian.
type Attached struct {
	Dir    string // where the queue files of the program's contexts are
	Helped bool   `json:",omitempty"` // the service will ask for Help, and the launcher is to stay an ancestor
	// Trace is what was asked for by Attach.Trace; nil from a service that does not know of it. It comes as a descriptor.
	Trace *CallTrace `json:"-"`
}

// Info describes the service.
type Info struct {
	PID      int  `json:"pid"`
	Programs int  `json:"programs"`  // attached now, and captures
	OnDemand bool `json:"on_demand"` // started by a client
}

// remoteError is an error that the service reported.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

func failure(err error) *Response {
	r := &Response{Error: err.Error()}
	errors.As(err, &r.Errno)
	return r
}

// conn carries messages: four bytes of length, then JSON. A descriptor travels with the first byte of a message.
type conn struct {
	*net.UnixConn
	closing closing
}

// closing bounds how many descriptors that one user has sent are being closed at a time, since that may take as long as
// the user likes: a FUSE server has a say (flush). nil bounds nothing.
type closing chan struct{}

// maxClosing is the bound.
const maxClosing = 4

func (c closing) close(f *os.File) {
	if f == nil {
		return
	}
	if c != nil {
		c <- struct{}{}
		defer func() { <-c }()
	}
	f.Close()
}

func (c conn) send(v any, fd *os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("message of %d bytes is too long", len(body))
	}
	msg := append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	if fd == nil {
		_, err = c.Write(msg)
		return err
	}
	n, _, err := c.WriteMsgUnix(msg, unix.UnixRights(int(fd.Fd())), nil)
	if err == nil && n < len(msg) {
		_, err = c.Write(msg[n:])
	}
	return err
}

// receive reads one message into v, and returns the descriptor that came with it, nil if there was none.
func (c conn) receive(v any) (*os.File, error) { return c.receiveWithin(v, maxMessage, 0, 0) }

// receiveWithin reads one message of at most so many bytes. It waits so long for all of it, and for what follows its
// first bytes; 0 stands for no limit. With either, no deadline is left on the connection.
func (c conn) receiveWithin(v any, most uint32, all, rest time.Duration) (*os.File, error) {
	if all > 0 {
		c.SetReadDeadline(time.Now().Add(all))
		defer c.SetReadDeadline(time.Time{})
	}
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	fd, err := c.descriptor(oob[:oobn])
	if err != nil {
		return nil, err
	}
	if rest > 0 && all == 0 {
		c.SetReadDeadline(time.Now().Add(rest))
		defer c.SetReadDeadline(time.Time{})
	}
	fail := func(err error) (*os.File, error) {
		c.closing.close(fd)
		return nil, err
	}
	if n == 0 {
		return fail(io.EOF)
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return fail(err)
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > most {
		return fail(fmt.Errorf("message of %d bytes is longer than %d", size, most))
	}
	body, err := io.ReadAll(io.LimitReader(c, int64(size)))
	if err != nil {
		return fail(err)
	}
	if len(body) < int(size) {
		return fail(io.ErrUnexpectedEOF)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fail(fmt.Errorf("malformed message: %s", clip(err.Error())))
	}
	return fd, nil
}

// descriptor takes the one descriptor out of control messages, and closes any more that a peer may have sent.
func (c conn) descriptor(oob []byte) (*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("malformed control message: %w", err)
	}
	var file *os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			f := os.NewFile(uintptr(fd), "passed descriptor")
			if file != nil {
				c.closing.close(f)
				continue
			}
			file = f
		}
	}
	return file, nil
}
