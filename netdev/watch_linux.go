package netdev

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watcher reports changes of the interfaces of a network namespace and of their addresses (rtnetlink(7)). A Watcher
// does not report details. Call [All] to read the new state.
type Watcher struct {
	socket *os.File
	buf    []byte
}

// Watch starts to watch the network namespace of the calling thread. Watch needs no privilege. The caller must close
// the Watcher.
func Watch() (*Watcher, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch the network interfaces: %w", os.NewSyscallError("socket", err))
	}
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch the network interfaces: %w", os.NewSyscallError("bind", err))
	}
	return &Watcher{socket: os.NewFile(uintptr(fd), "rtnetlink"), buf: make([]byte, 64<<10)}, nil
}

// Wait sleeps until an interface or address has changed since its last return. One return may cover several changes.
// Wait returns os.ErrClosed after the Watcher has been closed.
func (w *Watcher) Wait() error {
	// The contents of a message may be outdated and are therefore ignored. Lost messages (ENOBUFS) are harmless for the
	// same reason.
	if _, err := w.socket.Read(w.buf); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("watch the network interfaces: %w", err)
	}
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch the network interfaces: %w", err)
	}
	return raw.Control(func(fd uintptr) {
		for range 1000 { // one return covers all messages received so far
			if _, err := unix.Read(int(fd), w.buf); err != nil && err != unix.ENOBUFS && err != unix.EINTR {
				return
			}
		}
	})
}

// Close ends the watch and wakes a sleeping Wait. Close may be called once, from any thread.
func (w *Watcher) Close() error { return w.socket.Close() }
