package netdev

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watcher tells of changes of the interfaces of a network namespace and of their addresses (rtnetlink(7)). It does not
// tell which: [All] shows what there is then.
type Watcher struct {
	socket *os.File
	buf    []byte
}

// Watch starts to watch the network namespace of the calling thread. It needs no privilege. The caller closes the Watcher.
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

// Wait sleeps until something has changed since it returned last; several changes may make it return once. It fails with
// os.ErrClosed when the Watcher was closed.
func (w *Watcher) Wait() error {
	// What a message says does not matter: it may be old by now. Nor does it matter that some were lost (ENOBUFS).
	if _, err := w.socket.Read(w.buf); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("watch the network interfaces: %w", err)
	}
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch the network interfaces: %w", err)
	}
	return raw.Control(func(fd uintptr) {
		for range 1000 { // those that have come by now are told by one return
			if _, err := unix.Read(int(fd), w.buf); err != nil && err != unix.ENOBUFS && err != unix.EINTR {
				return
			}
		}
	})
}

// Close ends the watch; a Wait that sleeps returns. It may be called from anywhere, once.
func (w *Watcher) Close() error { return w.socket.Close() }
