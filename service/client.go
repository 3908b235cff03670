package service

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
)

// Client is a connection to a service, including one started by Start, StartDaemon or StartPrivate.
type Client struct {
	*ctl.Client
	ended   <-chan struct{} // closed when a private service has ended; nil for other services
	started bool
}

// Started reports whether the service was started for this client.
func (c *Client) Started() bool { return c.started }

// lockPath returns the path of the lock file that the service at the location holds while it runs.
func lockPath(l ctl.Location) string { return l.Socket + ".lock" }

// startPath returns the path of the lock file that a client locks while it starts a service. During the start, the
// new service acquires the lock of lockPath.
func startPath(l ctl.Location) string { return l.Socket + ".start" }

// dial returns a client of the service that runs at loc.
func dial(loc ctl.Location) (*Client, error) {
	c, err := ctl.Dial(loc)
	if err != nil {
		return nil, err
	}
	return &Client{Client: c}, nil
}

// dialSameVersion connects to the service at loc. If that service speaks another version of the protocol, was started
// by a client and is idle, dialSameVersion ends the service and returns ErrNotRunning.
func dialSameVersion(loc ctl.Location) (*Client, error) {
	c, err := dial(loc)
	if err != nil {
		return nil, err
	}
	_, err = c.Do(&ctl.Request{Op: ctl.OpInfo})
	switch {
	case errors.Is(err, syscall.EAGAIN): // the service has refused the connection and closed it
		c.Close()
		return nil, err
	case !errors.Is(err, syscall.EPROTO):
		return c, nil // the next request returns any other error
	}
	if yielded := c.Yield(takeOverTimeout); yielded == nil {
		err = ctl.ErrNotRunning
	}
	c.Close()
	return nil, err
}

// Start connects to the service at loc, and starts a service first if none runs. self is the path of the verbena
// command, and args are the arguments of `serve`.
func Start(loc ctl.Location, self string, args ...string) (*Client, error) {
	if c, err := dialSameVersion(loc); !errors.Is(err, ctl.ErrNotRunning) {
		return c, err
	}
	// If two clients start a service at the same time, the second client connects to the service of the first.
	lock, err := openLockedFile(startPath(loc), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer lock.Close()
	if c, err := dial(loc); !errors.Is(err, ctl.ErrNotRunning) {
		return c, err
	}
	c, err := startServiceAt(loc, self, append([]string{"serve", "--on-demand"}, args...))
	if err != nil {
		if other, derr := dial(loc); derr == nil { // another user's service, started in the meantime
			return other, nil
		}
	}
	return c, err
}

// StartDaemon starts a service at loc and returns when the service is ready. self is the path of the verbena command,
// and args is its command line. The service reports on ReadyFD and writes its messages to loc.Log. A service that
// already runs at loc is replaced if it yields (see TakeOver). Otherwise the error wraps EADDRINUSE. StartDaemon may
// sleep.
func StartDaemon(loc ctl.Location, self string, args ...string) (*Client, error) {
	if c, err := dial(loc); err == nil {
		c.Close()
		if c.UID() != os.Geteuid() {
			return nil, fmt.Errorf("user %d's service is running already at %s: run programs on it, "+
				"or choose another path with --socket or VERBENA_SOCKET: %w", c.UID(), loc.Socket, syscall.EADDRINUSE)
		}
	} else if !errors.Is(err, ctl.ErrNotRunning) {
		return nil, err
	}
	lock, err := openLockedFile(startPath(loc), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer lock.Close()
	if err := TakeOver(loc); err != nil { // before the truncation of the log, which a continuing service needs
		return nil, err
	}
	return startServiceAt(loc, self, args)
}

// startServiceAt starts self at loc and connects to it. The caller holds startPath(loc).
func startServiceAt(loc ctl.Location, self string, args []string) (*Client, error) {
	logFile, err := openLog(loc.LogPath())
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer logFile.Close()
	socket, err := filepath.Abs(loc.Socket) // the service runs in another directory
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	if _, _, err := spawnService(self, append(args, "--socket", socket), logFile, nil); err != nil {
		return nil, err
	}
	c, err := dial(loc)
	if err != nil {
		return nil, err
	}
	c.started = true
	return c, nil
}

// TakeOver ends the service at loc, if a client started it and it is not in use, and waits for its end. A program
// that has just ended may still count as in use, so TakeOver repeats the request for programEndDetectionTime. Any other
// service keeps running, and the error wraps EADDRINUSE and names the remedy. TakeOver may sleep.
func TakeOver(loc ctl.Location) error {
	for deadline := time.Now().Add(programEndDetectionTime); ; time.Sleep(20 * time.Millisecond) {
		err := requestYield(loc)
		if no := (*ctl.YieldError)(nil); errors.As(err, &no) {
			if errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline) {
				continue
			}
			return fmt.Errorf("a service is running already at %s: %w; use that one, end it with `verbena stop`, "+
				"or choose another path with --socket or VERBENA_SOCKET", loc.Socket, &lockedLocationError{err})
		}
		return err
	}
}

func requestYield(loc ctl.Location) error {
	c, err := dial(loc)
	if errors.Is(err, ctl.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Yield(takeOverTimeout)
}

// programEndDetectionTime is the time that a service may need to detect the end of a program.
const programEndDetectionTime = time.Second

// takeOverTimeout limits the wait for the answer of a service that may still be starting.
const takeOverTimeout = 5 * time.Second

// lockedLocationError is the error for a location that another service has locked.
type lockedLocationError struct{ cause error }

func (e *lockedLocationError) Error() string   { return e.cause.Error() }
func (e *lockedLocationError) Unwrap() []error { return []error{e.cause, syscall.EADDRINUSE} }

// StartPrivate starts a service that serves only the returned client and ends with the client. The messages of the
// service go to log.
func StartPrivate(self string, log *os.File, args ...string) (*Client, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start a private service: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	c, err := ctl.NewConn(ours)
	if err != nil {
		return nil, fmt.Errorf("start a private service: %w", err)
	}
	ended, pid, err := spawnService(self, append([]string{"serve", "--private"}, args...), log, theirs)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &Client{Client: ctl.NewClient(c.UnixConn, pid, os.Geteuid()), ended: ended}, nil
}

// ReadyFD is the descriptor on which a spawned service reports one line, either "ready" or an error. ControlFD is
// the descriptor of the connection to a private service.
const (
	ReadyFD   = 3
	ControlFD = 4
)

// startTimeout limits the wait for a started service. A service starts in about ten milliseconds.
const startTimeout = 20 * time.Second

// spawnService starts self in a new session and waits until the new process reports. spawnService returns the process
// ID; ended is closed when the process ends.
func spawnService(self string, args []string, log, control *os.File) (ended <-chan struct{}, pid int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, 0, fmt.Errorf("start a service: %w", err)
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
		return nil, 0, fmt.Errorf("start a service: %w", err)
	}
	over := make(chan struct{})
	var how error // the result of cmd.Wait
	go func() {
		defer close(over)
		how = cmd.Wait()
	}()
	messages := "its messages are in " + log.Name()
	if log == os.Stderr {
		messages = "its messages, if any, are above"
	}
	r.SetReadDeadline(time.Now().Add(startTimeout))
	line, err := bufio.NewReader(r).ReadString('\n')
	switch line = strings.TrimSpace(line); {
	case line == "ready":
		return over, cmd.Process.Pid, nil
	case line != "":
		return nil, 0, errors.New(line)
	case err == io.EOF:
		end := "exit status 0"
		select {
		case <-over:
			if how != nil {
				end = how.Error()
			}
		case <-time.After(startTimeout):
			end = "it has closed its descriptors"
		}
		return nil, 0, fmt.Errorf("start a service: it ended before it was ready: %s; %s", end, messages)
	}
	return nil, 0, fmt.Errorf("start a service: not ready after %v; %s", startTimeout, messages)
}

// Close ends the connection. Close waits up to a second for the end of a private service, so that the next service
// can use its addresses. A private service continues while processes of the program remain.
func (c *Client) Close() error {
	err := c.Client.Close()
	if c.ended != nil {
		select {
		case <-c.ended:
		case <-time.After(time.Second):
		}
	}
	return err
}
