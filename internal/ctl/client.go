package ctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/procfile"
)

// ErrNotRunning is the error for a location without a listening service.
var ErrNotRunning = errors.New("no service is running")

// errConnectionClosed is the error if a service has closed the connection without an answer.
var errConnectionClosed = errors.New("the service closed the connection")

// EndTimeout limits the time in which a service must end after a request to stop.
const EndTimeout = 10 * time.Second

// Client is a connection to a service, for one request at a time.
type Client struct {
	c        Conn
	pid, uid int // process and user of the service
}

// NewClient returns a client of the service at the other end of c. pid and uid are the process and user of the
// service.
func NewClient(c *net.UnixConn, pid, uid int) *Client {
	return &Client{c: Conn{UnixConn: c}, pid: pid, uid: uid}
}

// Dial connects to the service at loc, or returns ErrNotRunning if there is none. Dial trusts the services of root,
// of this user and of loc.ServiceUser, since a service can access all memory and files of its programs. Dial
// returns EPERM for any other service. It may sleep.
func Dial(loc Location) (*Client, error) {
	if err := loc.Check(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(killedTimeout); ; time.Sleep(awaitInterval) {
		c, err := dialUntrusted(loc)
		if err != nil {
			return nil, err
		}
		if !isProcessKilled(c.pid) {
			return c, nil
		}
		c.Close()
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the service at %s (process %d) %w: end that server, or write to its /sys/fs/fuse/connections/N/abort",
				loc.Socket, c.pid, errKilledService)
		}
	}
}

// killedTimeout is the time that a killed process may need to end.
const killedTimeout = 2 * time.Second

// errKilledService is the error for a killed service. The kernel still accepts connections for a killed service, but
// none of its threads will answer.
var errKilledService = errors.New("was killed, but one of its threads waits for memory of a program, such as a file of a FUSE server")

// isProcessKilled reports whether a process was killed but has not ended. It returns false if the state of the process
// is not visible.
func isProcessKilled(pid int) bool {
	if pid == 0 {
		return false
	}
	status, err := procfile.ReadNoFollow(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && hasDyingThreads(string(status))
}

// hasDyingThreads reports whether the file /proc/PID/status shows a process with threads that are about to end. The
// first thread of such a process is a zombie or has SIGKILL pending.
func hasDyingThreads(status string) bool {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "State":
			if strings.HasPrefix(value, "Z") {
				return true
			}
		case "SigPnd":
			pending, err := strconv.ParseUint(value, 16, 64)
			return err == nil && pending&(1<<(unix.SIGKILL-1)) != 0
		}
	}
	return false
}

func dialUntrusted(loc Location) (*Client, error) {
	c, err := connect(loc.Socket)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w at %s; `verbena run` and `verbena serve --daemon` start one, "+
				"and `verbena wait` waits for one that is being started", ErrNotRunning, loc.Socket)
		}
		if errors.Is(err, syscall.EACCES) {
			return nil, fmt.Errorf("the service at %s belongs to another user; that user can share it with --group or --mode of "+
				"`verbena serve`; VERBENA_SOCKET names another service: %w", loc.Socket, syscall.EACCES)
		}
		return nil, fmt.Errorf("connect to the service: %w", err)
	}
	pid, uid, err := PeerCredentials(c)
	if err == nil {
		err = loc.checkTrusted(uid)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return NewClient(c, pid, uid), nil
}

// connectTimeout limits the wait for a service with many clients to accept the connection.
const connectTimeout = 10 * time.Second

// connect connects to a socket. If the socket's queue is full, connect waits in the kernel's queue. The
// non-blocking connect(2) of package net would fail with EAGAIN instead.
func connect(path string) (*net.UnixConn, error) {
	fail := func(err error) (*net.UnixConn, error) {
		return nil, &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"},
			Err: os.NewSyscallError("connect", err)}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	limit := unix.NsecToTimeval(connectTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return fail(err)
	}
	for {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if err == nil {
			break
		}
		if err == unix.EAGAIN {
			return nil, fmt.Errorf("the service has not accepted the connection within %v, because too many clients connect: try again: %w",
				connectTimeout, err)
		}
		if err != unix.EINTR {
			return fail(err)
		}
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{}); err != nil {
		return fail(err)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Await connects to the service at loc as soon as a service is ready. Await fails with the cause of ctx, or with
// the error of Dial for a service that is not trusted. It may sleep.
func Await(ctx context.Context, loc Location) (*Client, error) {
	for {
		c, err := Dial(loc)
		if err == nil {
			// A service listens before it is ready, and answers once it is ready.
			stop := context.AfterFunc(ctx, func() { c.c.SetDeadline(time.Now()) })
			if _, err = c.Do(&Request{Op: OpInfo}); stop() && err == nil {
				return c, nil
			}
			c.Close()
			if e := (*remoteError)(nil); errors.As(err, &e) {
				return nil, err
			}
		} else if !errors.Is(err, ErrNotRunning) && !errors.Is(err, errKilledService) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w at %s: %w", ErrNotRunning, loc.Socket, context.Cause(ctx))
		case <-time.After(awaitInterval):
		}
	}
}

// awaitInterval is the time between two attempts of Await.
const awaitInterval = 10 * time.Millisecond

// IsEnding reports whether an error of Attach means that the service was ending. In that case another service may
// accept the program.
func IsEnding(err error) bool {
	return errors.Is(err, errConnectionClosed) || errors.Is(err, syscall.ESHUTDOWN)
}

// PID returns the process ID of the service, as reported by the kernel, or 0 if it is not visible in this pid
// namespace. If the service has ended, the process ID may have been reused.
func (c *Client) PID() int { return c.pid }

// UID returns the user ID of the service.
func (c *Client) UID() int { return c.uid }

// Close ends the connection.
func (c *Client) Close() error { return c.c.Close() }

// Do sends a request and waits for the answer. An error that the service reports is a remoteError. It may sleep.
func (c *Client) Do(r *Request) (*Response, error) { return c.doWithFile(r, nil) }

//verbena:allow close a client trusts its service
func (c *Client) doWithFile(r *Request, fd *os.File) (*Response, error) {
	a, f, err := c.exchange(r, fd)
	if f != nil {
		f.Close()
	}
	return a, err
}

// exchange sends a request, waits for the answer, and returns it with its descriptor, which may be nil.
func (c *Client) exchange(r *Request, fd *os.File) (*Response, *os.File, error) {
	if r.Protocol == 0 {
		r.Protocol = ProtocolVersion
	}
	r.Build = BuildName
	sent := c.c.Send(r, fd)
	if sent != nil && !errors.Is(sent, syscall.EPIPE) {
		return nil, nil, fmt.Errorf("ask the service: %w", sent)
	}
	var a Response // even after a failed send, there may be an answer with the reason
	f, err := c.c.Receive(&a, MessageLimits{Size: MaxResponse})
	if err == nil && sent != nil && a.Error == "" {
		err = sent
	}
	if err != nil {
		return nil, f, fmt.Errorf("ask the service: %w: %w", errConnectionClosed, err)
	}
	if a.Error != "" && a.isOldRefusal() {
		a.Error = fmt.Sprintf("the running service%s is older than this command (%s): %s", c.describeProcess(),
			describeBuild(BuildName, ProtocolVersion), replaceServiceAdvice)
		a.Errno = syscall.EPROTO
	}
	if err := a.err(); err != nil {
		return nil, f, err
	}
	return &a, f, nil
}

// describeProcess returns the text for the service's process, if the process is visible here.
func (c *Client) describeProcess() string {
	if c.pid == 0 {
		return ""
	}
	return fmt.Sprintf(" (process %d)", c.pid)
}

// firstYieldProtocol is the first version of the protocol that has OpYield. Services that do not report their build
// accept OpYield only in their own version.
const firstYieldProtocol = 4

// Stop ends the service, and returns after its end. Stop returns ETIMEDOUT if the service has not ended within
// EndTimeout. It may sleep.
func (c *Client) Stop() error {
	if _, err := c.Do(&Request{Op: OpStop}); err != nil {
		return err
	}
	return c.awaitServiceEnd()
}

// Yield ends the service if a client started it and it is not in use, and returns after its end. Otherwise Yield
// returns EBUSY. answer limits the wait for the answer of a service that may still be starting. It may sleep.
func (c *Client) Yield(answer time.Duration) error {
	c.c.SetDeadline(time.Now().Add(answer))
	var err error
	for n := ProtocolVersion; n >= firstYieldProtocol; n-- {
		if _, err = c.Do(&Request{Protocol: n, Op: OpYield}); !errors.Is(err, syscall.EPROTO) {
			break
		}
	}
	if err != nil {
		return &YieldError{err}
	}
	return c.awaitServiceEnd()
}

// YieldError is the reason why a service does not yield.
type YieldError struct{ Err error }

// Error returns the text of the reason.
func (e *YieldError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *YieldError) Unwrap() error { return e.Err }

// awaitServiceEnd waits for the end of a service that is ending.
//
//verbena:allow receive a client trusts its service
func (c *Client) awaitServiceEnd() error {
	c.c.SetReadDeadline(time.Now().Add(EndTimeout + 2*time.Second))
	if _, err := c.c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service has not ended within %v; kill it: %w", EndTimeout, syscall.ETIMEDOUT)
	}
	return nil
}

// Open opens a device file of the service, by the device's name. From then on the connection carries the protocol
// of package devfile. Open returns the connection, and the Client must not be used any more. Open may sleep.
func (c *Client) Open(name string) (*OpenResult, *net.UnixConn, error) {
	a, err := c.Do(&Request{Op: OpOpen, Name: name})
	if err != nil {
		return nil, nil, err
	}
	if a.Opened == nil {
		return nil, nil, fmt.Errorf("open %s: the service sent an invalid answer: %w", name, syscall.EPROTO)
	}
	return a.Opened, c.c.UnixConn, nil
}

// Attach passes the listener of a program that is about to start to the service. From then on the connection
// represents the program, until Close, and the channel of Serve reports the end of the service. The caller closes
// Attached.Trace. Attach may sleep.
//
//verbena:allow close a client trusts its service
func (c *Client) Attach(a Attach, listener *os.File) (*AttachResult, error) {
	a.Args = TruncateArgs(a.Args)
	r, trace, err := c.exchange(&Request{Op: OpAttach, Attach: &a}, listener)
	if err == nil && r.Attached == nil {
		err = errors.New("ask the service: malformed answer to attach")
	}
	if err == nil && trace != nil && (a.Trace || a.Explain || a.Sanitize != nil) {
		r.Attached.Trace, err = NewCallTrace(trace)
		trace = nil
	}
	if trace != nil {
		trace.Close()
	}
	if err != nil {
		return nil, err
	}
	return r.Attached, nil
}

// Helper performs operations for a service that the kernel allows only to an ancestor of the program. Helper's
// methods may sleep.
type Helper interface {
	// OpenMem opens /proc/TID/mem for reading and writing.
	OpenMem(tid int) (*os.File, error)
	// Notice shows a line of text to the user of the program. The service may belong to another user.
	Notice(text string)
}

// Serve answers the service's requests after Attach. Serve closes the channel when the service has closed the
// connection, because the service died or was stopped. The client must send no further request.
//
//verbena:allow close a client trusts its service
//verbena:allow recover a client trusts its service
func (c *Client) Serve(h Helper) <-chan struct{} {
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for {
			var r HelpRequest
			f, err := c.c.Receive(&r, MessageLimits{Size: MaxRequest})
			if f != nil {
				f.Close()
			}
			if err != nil || c.answerHelpRequest(h, &r) != nil {
				return
			}
		}
	}()
	return lost
}

func (c *Client) answerHelpRequest(h Helper, r *HelpRequest) error {
	var f *os.File
	var err error
	switch {
	case r.MemOf != 0:
		f, err = h.OpenMem(r.MemOf)
	case r.Notice != "":
		h.Notice(r.Notice)
		return c.c.Send(&HelpAnswer{}, nil)
	default:
		err = fmt.Errorf("malformed request: %w", syscall.EINVAL)
	}
	if err != nil {
		return c.c.Send(errorHelpAnswer(err), nil)
	}
	defer f.Close()
	return c.c.Send(&HelpAnswer{}, f)
}

// MaxArgs is the maximum size of the kept arguments of a program, in bytes.
const MaxArgs = 4096

// TruncateArgs truncates an argument vector to a size suitable for messages.
func TruncateArgs(args []string) []string {
	var short []string
	left := MaxArgs
	for _, a := range args {
		if len(a)+1 > left {
			return append(short, strings.ToValidUTF8(a[:max(left-1, 0)], "")+"...")
		}
		short = append(short, a)
		left -= len(a) + 1
	}
	return short
}
