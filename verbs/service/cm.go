package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"verbena/internal/ctl"
	"verbena/internal/ctl/devfile"
	"verbena/verbs/cm"
	"verbena/verbs/internal/transport"
)

// ConnectionManager opens the connection manager of the service. ConnectionManager may sleep.
// (rdma_create_event_channel)
func (s *Service) ConnectionManager() (*cm.Manager, error) {
	f, err := openCMFile(s.loc)
	if err != nil {
		return nil, fmt.Errorf("verbs: open the connection manager: %w", err)
	}
	return cm.NewFile(f), nil
}

// cmFile is the open file of the connection manager. (transport.CM)
type cmFile struct {
	*session

	mu     sync.RWMutex // read-locked while the file is in use, write-locked to close the file
	closed bool
}

func openCMFile(loc ctl.Location) (transport.CM, error) {
	x, _, _, err := dialFile(loc, devfile.ConnectionManager, 0)
	if err != nil {
		return nil, err
	}
	return &cmFile{session: x}, nil
}

func (f *cmFile) Write(s *transport.Scratch, n int) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return transport.ErrClosed
	}
	_, _, err := f.sendRequest(devfile.Request{Op: devfile.OpWrite, Addr: s.Addr, N: uint64(n)})
	return err
}

// Await reads the signal. The byte of the signal may belong to an event that has already been received.
func (f *cmFile) Await(s *transport.Scratch, n int) error {
	var b [64]byte
	for {
		if err := f.Write(s, n); !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		switch _, err := f.signal.Read(b[:]); {
		case errors.Is(err, os.ErrClosed):
			return transport.ErrClosed
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			f.dead.Store(true)
			return errServiceEnded
		case err != nil:
			return err
		}
	}
}

func (f *cmFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.session.endSession()
	return nil
}
