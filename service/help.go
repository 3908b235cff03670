package service

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"verbena/supervisor"
)

// Help is what a service asks of a launcher, over the connection that stands for the program: the request is sent by
// the service, and the answer is a Response with the descriptor.
type Help struct {
	MemOf int `json:",omitempty"` // thread whose /proc/TID/mem is wanted
}

// helpTimeout bounds the wait for a launcher, which may be stopped. It answers in well under a millisecond.
const helpTimeout = 10 * time.Second

// launcher is the supervisor.Helper at the other end of a connection.
type launcher struct {
	mu   sync.Mutex // one request at a time
	c    conn
	gone error // an answer has failed to come; a later one could be taken for another's
}

func (l *launcher) OpenMem(tid int) (*os.File, error) { return l.ask(&Help{MemOf: tid}) }

func (l *launcher) ask(h *Help) (*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone != nil {
		return nil, l.gone
	}
	fail := func(err error) (*os.File, error) {
		l.gone = fmt.Errorf("ask the launcher, which alone may reach the program (kernel.yama.ptrace_scope): %w", err)
		return nil, l.gone
	}
	if err := l.c.SetDeadline(time.Now().Add(helpTimeout)); err != nil {
		return fail(err)
	}
	defer l.c.SetDeadline(time.Time{})
	if err := l.c.send(h, nil); err != nil {
		return fail(err)
	}
	var r Response
	f, err := l.c.receiveWithin(&r, maxRequest, 0, 0)
	switch {
	case err != nil:
		return fail(err)
	case r.Error != "":
		if f != nil {
			f.Close()
		}
		return nil, &remoteError{r.Error, r.Errno}
	case f == nil:
		return fail(errors.New("an answer without a descriptor"))
	}
	return f, nil
}

// Serve answers what the service asks after Attach. The channel that it returns is closed when the service has ended
// the connection, which means that it died or was stopped. No request may follow.
func (c *Client) Serve(h supervisor.Helper) <-chan struct{} {
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for {
			var r Help
			f, err := c.c.receive(&r)
			if f != nil {
				f.Close()
			}
			if err != nil || c.help(h, &r) != nil {
				return
			}
		}
	}()
	return lost
}

func (c *Client) help(h supervisor.Helper, r *Help) error {
	var f *os.File
	var err error
	switch {
	case r.MemOf != 0:
		f, err = h.OpenMem(r.MemOf)
	default:
		err = fmt.Errorf("malformed request: %w", unix.EINVAL)
	}
	if err != nil {
		return c.c.send(failure(err), nil)
	}
	defer f.Close()
	return c.c.send(&Response{}, f)
}
