package service

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"verbena/internal/ctl"
)

// helpTimeout limits the wait for a launcher, which may be a stopped process. A running launcher answers within a
// fraction of a millisecond.
const helpTimeout = 10 * time.Second

// remoteHelper implements supervisor.Helper for the launcher at the other end of a connection.
type remoteHelper struct {
	mu   sync.Mutex // serialises requests
	c    ctl.Conn
	gone error // set after a missing answer, because a later answer could belong to another request
}

func (l *remoteHelper) OpenMem(tid int) (*os.File, error) {
	f, err := l.requestHelp(&ctl.HelpRequest{MemOf: tid})
	if err == nil && f == nil {
		err = errors.New("ask the launcher: an answer without a descriptor")
	}
	return f, err
}

// printNotice makes the launcher print a line for the user of the program. It may sleep.
func (l *remoteHelper) printNotice(text string) error {
	f, err := l.requestHelp(&ctl.HelpRequest{Notice: text})
	l.c.Discard(f)
	return err
}

// requestHelp returns the descriptor in the launcher's answer, or nil.
func (l *remoteHelper) requestHelp(h *ctl.HelpRequest) (*os.File, error) {
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
	if err := l.c.Send(h, nil); err != nil {
		return fail(err)
	}
	var r ctl.HelpAnswer
	f, err := l.c.Receive(&r, ctl.MessageLimits{Size: ctl.MaxHelpAnswer})
	switch {
	case err != nil:
		return fail(err)
	case r.Err() != nil:
		l.c.Discard(f)
		return nil, r.Err()
	}
	return f, nil
}
