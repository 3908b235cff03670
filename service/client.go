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

// Client is a connection to a service that Start, Daemon or StartPrivate may have started.
type Client struct {
	*ctl.Client
	ended   <-chan struct{} // closed when a private service has ended; nil: it is not private
	started bool
}

// Started reports whether the service was started for this client.
func (c *Client) Started() bool { return c.started }

// lockPath returns the path of the lock that the service which has the location holds, as long as it lives.
func lockPath(l ctl.Location) string { return l.Socket + ".lock" }

// startPath returns the path of the lock that a client holds while it starts a service, which takes the other
// meanwhile.
func startPath(l ctl.Location) string { return l.Socket + ".start" }

// dial returns a client of the service that runs at loc.
func dial(loc ctl.Location) (*Client, error) {
	c, err := ctl.Dial(loc)
	if err != nil {
		return nil, err
	}
	return &Client{Client: c}, nil
}

// dialSame is dial, and replaces a service of another version of the protocol that a client has started and that is not
// in use.
func dialSame(loc ctl.Location) (*Client, error) {
	c, err := dial(loc)
	if err != nil {
		return nil, err
	}
	_, err = c.Do(&ctl.Request{Op: ctl.OpInfo})
	switch {
	case errors.Is(err, syscall.EAGAIN): // the service refuses the connection, and has ended it
		c.Close()
		return nil, err
	case !errors.Is(err, syscall.EPROTO):
		return c, nil // the next request reports any other error
	}
	if yielded := c.Yield(takeOverTimeout); yielded == nil {
		err = ctl.ErrNotRunning
	}
	c.Close()
	return nil, err
}

// Start connects to the service at loc, and starts one first if there is none: self is the path of the verbena
// command, args what follows `serve`.
func Start(loc ctl.Location, self string, args ...string) (*Client, error) {
	if c, err := dialSame(loc); !errors.Is(err, ctl.ErrNotRunning) {
		return c, err
	}
	// The second of two that come together finds the first one's service.
	lock, err := flock(startPath(loc), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer lock.Close()
	if c, err := dial(loc); !errors.Is(err, ctl.ErrNotRunning) {
		return c, err
	}
	c, err := spawnAt(loc, self, append([]string{"serve", "--on-demand"}, args...))
	if err != nil {
		if other, derr := dial(loc); derr == nil { // that a user has started meanwhile
			return other, nil
		}
	}
	return c, err
}

// Daemon starts a service at loc and returns when it is ready: self is the path of the verbena command, args its
// command line. The service reports on ReadyFD and writes its messages to loc.Log. A service that runs there already is
// replaced if it yields (TakeOver); else the error wraps EADDRINUSE. It may sleep.
func Daemon(loc ctl.Location, self string, args ...string) (*Client, error) {
	if c, err := dial(loc); err == nil {
		c.Close()
		if c.UID() != os.Geteuid() {
			return nil, fmt.Errorf("user %d's service is running already at %s: run programs on it, "+
				"or choose another path with --socket or VERBENA_SOCKET: %w", c.UID(), loc.Socket, syscall.EADDRINUSE)
		}
	} else if !errors.Is(err, ctl.ErrNotRunning) {
		return nil, err
	}
	lock, err := flock(startPath(loc), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer lock.Close()
	if err := TakeOver(loc); err != nil { // the log of a service that goes on stays as it is
		return nil, err
	}
	return spawnAt(loc, self, args)
}

// spawnAt starts self at loc and connects to it. The caller holds startPath(loc).
func spawnAt(loc ctl.Location, self string, args []string) (*Client, error) {
	logFile, err := openLog(loc.Log())
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	defer logFile.Close()
	socket, err := filepath.Abs(loc.Socket) // the service runs in another directory
	if err != nil {
		return nil, fmt.Errorf("start a service: %w", err)
	}
	if _, _, err := spawn(self, append(args, "--socket", socket), logFile, nil); err != nil {
		return nil, err
	}
	c, err := dial(loc)
	if err != nil {
		return nil, err
	}
	c.started = true
	return c, nil
}

// TakeOver ends the service at loc if a client has started it and it is not in use, and waits until it has ended. One
// that is in use is asked again for takeOverPatience: a program that has just ended may still count. Another one stays
// as it is: the error wraps EADDRINUSE and names the remedy. It may sleep.
func TakeOver(loc ctl.Location) error {
	for deadline := time.Now().Add(takeOverPatience); ; time.Sleep(20 * time.Millisecond) {
		err := takeOver(loc)
		if no := (*ctl.YieldError)(nil); errors.As(err, &no) {
			if errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline) {
				continue
			}
			return fmt.Errorf("a service is running already at %s: %w; use that one, end it with `verbena stop`, "+
				"or choose another path with --socket or VERBENA_SOCKET", loc.Socket, &takenError{err})
		}
		return err
	}
}

func takeOver(loc ctl.Location) error {
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

// takeOverPatience is how long a service may take to notice that a program has ended.
const takeOverPatience = time.Second

// takeOverTimeout bounds the wait for the answer of a service that may still be starting.
const takeOverTimeout = 5 * time.Second

// takenError is why a location cannot be had.
type takenError struct{ cause error }

func (e *takenError) Error() string   { return e.cause.Error() }
func (e *takenError) Unwrap() []error { return []error{e.cause, syscall.EADDRINUSE} }

// StartPrivate starts a service that serves only the returned client and ends with it. Its messages go to log.
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
	ended, pid, err := spawn(self, append([]string{"serve", "--private"}, args...), log, theirs)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &Client{Client: ctl.NewClient(c.UnixConn, pid, os.Geteuid()), ended: ended}, nil
}

// ReadyFD is the number of the descriptor on which a spawned service reports: "ready", or what went wrong, on one
// line. ControlFD is a private service's only connection.
const (
	ReadyFD   = 3
	ControlFD = 4
)

// startTimeout bounds the wait for a service that was started; it takes some ten milliseconds.
const startTimeout = 20 * time.Second

// spawn starts self in a session of its own and waits until it reports. ended is closed when it ends, and
// pid is its process.
func spawn(self string, args []string, log, control *os.File) (ended <-chan struct{}, pid int, err error) {
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
	var how error // it has reported what went wrong, or is killed
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

// Close ends the connection. A private service, whose addresses the next may want, is given a moment to end; it goes on
// while something lives that the program has left running.
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
