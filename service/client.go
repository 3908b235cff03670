package service

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
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
}

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
			return nil, fmt.Errorf("%w at %s; `verbena run` and `verbena serve` start one", ErrNotRunning, loc.Socket)
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
	logFile, err := openLog(loc.Log())
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer logFile.Close()
	args = append([]string{"serve", "--socket", loc.Socket, "--on-demand"}, args...)
	if _, err := spawn(self, args, logFile, nil); err != nil {
		return nil, err
	}
	return Dial(loc)
}

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
	r.Protocol = protocol
	sent := c.c.send(r, fd)
	if sent != nil && !errors.Is(sent, syscall.EPIPE) {
		return nil, fmt.Errorf("ask the service: %w", sent)
	}
	var a Response // there may be one all the same: why the connection was closed
	f, err := c.c.receive(&a)
	if err == nil && sent != nil && a.Error == "" {
		err = sent
	}
	if err != nil {
		return nil, fmt.Errorf("ask the service: it ended the connection: %w", err)
	}
	if f != nil {
		f.Close()
	}
	if a.Error != "" {
		return nil, &remoteError{a.Error, a.Errno}
	}
	return &a, nil
}

// Stop ends the service, and returns when it has ended; ETIMEDOUT if it has not within the time that it states.
func (c *Client) Stop() error {
	if _, err := c.Do(&Request{Op: OpStop}); err != nil {
		return err
	}
	c.c.SetReadDeadline(time.Now().Add(CloseTimeout + 2*time.Second))
	if _, err := c.c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service has not ended within %v; kill it: %w", CloseTimeout, syscall.ETIMEDOUT)
	}
	return nil
}

// Attach hands over the listener of a program that is about to start. The connection then stands for the program
// until Close, and Serve tells when the service has died.
func (c *Client) Attach(a Attach, listener *os.File) (*Attached, error) {
	a.Args = cutArgs(a.Args)
	r, err := c.do(&Request{Op: OpAttach, Attach: &a}, listener)
	if err != nil {
		return nil, err
	}
	if r.Attached == nil {
		return nil, errors.New("ask the service: malformed answer to attach")
	}
	return r.Attached, nil
}
