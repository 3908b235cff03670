package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotRunning: nothing listens at the location.
var ErrNotRunning = errors.New("no service is running")

// Client is a connection to a service. One request at a time.
type Client struct {
	c     conn
	uid   int             // of the service
	ended <-chan struct{} // closed when a private service has; nil: it is somebody's
	made  bool            // Start has started the service
}

// Started reports whether Start has started the service.
func (c *Client) Started() bool { return c.made }

// Dial connects to the service at loc, ErrNotRunning if there is none. It trusts root's service, this user's own and
// that of loc.ServiceUser: a service reaches all memory and all files of the programs that it is given. EPERM for any
// other.
func Dial(loc Location) (*Client, error) {
	if err := loc.check(); err != nil {
		return nil, err
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: loc.Socket, Net: "unix"})
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w at %s; `verbena run` and `verbena serve --daemon` start one, "+
				"and `verbena wait` waits for one that is being started", ErrNotRunning, loc.Socket)
		}
		if errors.Is(err, syscall.EACCES) {
			return nil, fmt.Errorf("the service at %s is another user's, who lets others in by --group or --mode of `verbena serve`; VERBENA_SOCKET names another: %w",
				loc.Socket, syscall.EACCES)
		}
		return nil, fmt.Errorf("connect to the service: %w", err)
	}
	who, err := peerOf(c)
	if err == nil {
		err = loc.trusts(who.uid)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return &Client{c: conn{UnixConn: c}, uid: who.uid}, nil
}

// trusts reports an error unless programs may be given to a service of a user.
func (l Location) trusts(uid int) error {
	if uid == 0 || own(uid) || l.ServiceUser != nil && uid == *l.ServiceUser {
		return nil
	}
	return fmt.Errorf("the service at %s is user %d's, and would reach all memory and files of your programs: it has to be root's, your own, or of the user whom --service-user names: %w",
		l.Socket, uid, syscall.EPERM)
}

// Start connects to the service at loc, and starts one first if there is none: self is the path of the verbena
// command, args what follows `serve`.
func Start(loc Location, self string, args ...string) (*Client, error) {
	if c, err := Dial(loc); !errors.Is(err, ErrNotRunning) {
		return c, err
	}
	// The second of two that come together finds the first one's service.
	lock, err := flock(loc.starting(), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer lock.Close()
	if c, err := Dial(loc); !errors.Is(err, ErrNotRunning) {
		return c, err
	}
	c, err := spawnAt(loc, self, append([]string{"serve", "--on-demand"}, args...))
	if err != nil {
		if other, derr := Dial(loc); derr == nil { // that a user has started meanwhile
			return other, nil
		}
	}
	return c, err
}

// Daemon starts a service at loc and returns when it is ready: self is the path of the verbena command, args its
// command line. The service reports on ReadyFD and writes its messages to loc.Log. A service that runs there already is
// replaced if it yields (TakeOver); else the error wraps EADDRINUSE. It may sleep.
func Daemon(loc Location, self string, args ...string) (*Client, error) {
	if c, err := Dial(loc); err == nil {
		c.Close()
		if c.uid != os.Geteuid() {
			return nil, fmt.Errorf("user %d's service is running already at %s: run programs on it, "+
				"or choose another path with --socket or VERBENA_SOCKET: %w", c.uid, loc.Socket, syscall.EADDRINUSE)
		}
	} else if !errors.Is(err, ErrNotRunning) {
		return nil, err
	}
	lock, err := flock(loc.starting(), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer lock.Close()
	if answers(loc) { // whose log stays as it is, unless it ends
		if err := TakeOver(loc); err != nil {
			return nil, err
		}
	}
	return spawnAt(loc, self, args)
}

// spawnAt starts self at loc and connects to it. The caller holds loc.starting.
func spawnAt(loc Location, self string, args []string) (*Client, error) {
	logFile, err := openLog(loc.Log())
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer logFile.Close()
	socket, err := filepath.Abs(loc.Socket) // the service runs in another directory
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	if _, err := spawn(self, append(args, "--socket", socket), logFile, nil); err != nil {
		return nil, err
	}
	c, err := Dial(loc)
	if err != nil {
		return nil, err
	}
	c.made = true
	return c, nil
}

// TakeOver ends the service at loc if a client has started it and it is not in use, and waits until it has ended.
// Another one stays as it is: the error wraps EADDRINUSE and names the remedy. It may sleep.
func TakeOver(loc Location) error {
	c, err := Dial(loc)
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	c.c.SetDeadline(time.Now().Add(takeOverTimeout))
	if _, err := c.Do(&Request{Op: OpYield}); err != nil {
		return fmt.Errorf("a service is running already at %s: %w; use that one, end it with `verbena stop`, "+
			"or choose another path with --socket or VERBENA_SOCKET", loc.Socket, &takenError{err})
	}
	return c.awaitEnd()
}

// takeOverTimeout bounds the wait for the answer of a service that may still be starting.
const takeOverTimeout = 5 * time.Second

// takenError is why a location cannot be had.
type takenError struct{ cause error }

func (e *takenError) Error() string   { return e.cause.Error() }
func (e *takenError) Unwrap() []error { return []error{e.cause, syscall.EADDRINUSE} }

// Await connects to the service at loc when it is ready, as soon as there is one. It fails with the cause of ctx, and
// with what Dial reports of a service that may not be used. It may sleep.
func Await(ctx context.Context, loc Location) (*Client, error) {
	for {
		c, err := Dial(loc)
		if err == nil {
			// A service listens before it is ready, and answers then.
			stop := context.AfterFunc(ctx, func() { c.c.SetDeadline(time.Now()) })
			if _, err = c.Do(&Request{Op: OpInfo}); stop() && err == nil {
				return c, nil
			}
			c.Close()
			if e := (*remoteError)(nil); errors.As(err, &e) {
				return nil, err
			}
		} else if !errors.Is(err, ErrNotRunning) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w at %s: %w", ErrNotRunning, loc.Socket, context.Cause(ctx))
		case <-time.After(awaitPause):
		}
	}
}

// awaitPause is how often Await looks.
const awaitPause = 10 * time.Millisecond

// StartPrivate starts a service that serves only the returned client and ends with it. Its messages go to log.
func StartPrivate(self string, log *os.File, args ...string) (*Client, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start a private service: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer ours.Close()
	defer theirs.Close()
	ended, err := spawn(self, append([]string{"serve", "--private"}, args...), log, theirs)
	if err != nil {
		return nil, err
	}
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("start a private service: %w", err)
	}
	return &Client{c: conn{UnixConn: c.(*net.UnixConn)}, uid: os.Geteuid(), ended: ended}, nil
}

// errHungUp: a service has closed the connection instead of answering.
var errHungUp = errors.New("it ended the connection")

// Ending reports whether an error of Attach means that the service was ending, so that another may take the program.
func Ending(err error) bool { return errors.Is(err, errHungUp) || errors.Is(err, syscall.ESHUTDOWN) }

// ReadyFD is the number of the descriptor on which a spawned service reports: "ready", or what went wrong, on one
// line. ControlFD is a private service's only connection.
const (
	ReadyFD   = 3
	ControlFD = 4
)

// startTimeout bounds the wait for a service that was started; it takes some ten milliseconds.
const startTimeout = 20 * time.Second

// spawn starts self in a session of its own and waits until it reports. ended is closed when it ends.
func spawn(self string, args []string, log, control *os.File) (ended <-chan struct{}, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "verbena"
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	if control != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, control)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait() // it has reported what went wrong, or is killed
	}()
	r.SetReadDeadline(time.Now().Add(startTimeout))
	line, err := bufio.NewReader(r).ReadString('\n')
	switch line = strings.TrimSpace(line); {
	case line == "ready":
		return over, nil
	case line != "":
		return nil, errors.New(line)
	case err == io.EOF:
		return nil, fmt.Errorf("start a service: it ended before it was ready; its messages are in %s", log.Name())
	}
	return nil, fmt.Errorf("start a service: not ready after %v; its messages are in %s", startTimeout, log.Name())
}

// Close ends the connection. A private service, whose addresses the next may want, is given a moment to end; it goes on
// while something lives that the program has left running.
func (c *Client) Close() error {
	err := c.c.Close()
	if c.ended != nil {
		select {
		case <-c.ended:
		case <-time.After(time.Second):
		}
	}
	return err
}

// Do sends a request and waits for the answer. An error that the service reports wraps its errno.
func (c *Client) Do(r *Request) (*Response, error) { return c.do(r, nil) }

func (c *Client) do(r *Request, fd *os.File) (*Response, error) {
	a, f, err := c.exchange(r, fd)
	if f != nil {
		f.Close()
	}
	return a, err
}

// exchange sends a request and waits for the answer, with the descriptor that comes with it; nil: there is none.
func (c *Client) exchange(r *Request, fd *os.File) (*Response, *os.File, error) {
	r.Protocol = protocol
	sent := c.c.send(r, fd)
	if sent != nil && !errors.Is(sent, syscall.EPIPE) {
		return nil, nil, fmt.Errorf("ask the service: %w", sent)
	}
	var a Response // there may be one all the same: why the connection was closed
	f, err := c.c.receive(&a)
	if err == nil && sent != nil && a.Error == "" {
		err = sent
	}
	if err != nil {
		return nil, f, fmt.Errorf("ask the service: %w: %w", errHungUp, err)
	}
	if a.Error != "" {
		return nil, f, &remoteError{a.Error, a.Errno}
	}
	return &a, f, nil
}

// Stop ends the service, and returns when it has ended; ETIMEDOUT if it has not within the time that it states.
func (c *Client) Stop() error {
	if _, err := c.Do(&Request{Op: OpStop}); err != nil {
		return err
	}
	return c.awaitEnd()
}

// awaitEnd waits until a service that ends has ended.
func (c *Client) awaitEnd() error {
	c.c.SetReadDeadline(time.Now().Add(CloseTimeout + 2*time.Second))
	if _, err := c.c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service has not ended within %v; kill it: %w", CloseTimeout, syscall.ETIMEDOUT)
	}
	return nil
}

// Attach hands over the listener of a program that is about to start. The connection then stands for the program
// until Close, and Serve tells when the service has died. The caller closes Attached.Trace.
func (c *Client) Attach(a Attach, listener *os.File) (*Attached, error) {
	a.Args = cutArgs(a.Args)
	r, trace, err := c.exchange(&Request{Op: OpAttach, Attach: &a}, listener)
	if err == nil && r.Attached == nil {
		err = errors.New("ask the service: malformed answer to attach")
	}
	if err == nil && trace != nil && a.Trace {
		r.Attached.Trace, err = newCallTraceReader(trace)
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
