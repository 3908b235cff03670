package link

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxSourcePorts limits the number of additional sockets from which an endpoint sends.
const maxSourcePorts = 128

// sourcePorts holds the sockets of an endpoint that send from other ports than Port. The first train from a port to a
// destination opens the socket, and the entry of the destination refers to it from then on. No packet arrives at these
// sockets.
type sourcePorts struct {
	mu     sync.Mutex
	closed bool
	m      map[uint16]*portSocket
}

// portSocket is a socket that sends from one port.
type portSocket struct {
	fd        int
	users     atomic.Int64 // like UDPEndpoint.users
	leaving   atomic.Bool  // forgotten is set: the next user must call sourcePort
	forgotten *time.Timer  // closes the socket when it fires; nil: the port is in use; under sourcePorts.mu
}

// portLinger is the delay between [UDPEndpoint.ForgetPort] and the close of the socket. Packets that wait in a socket
// of this process are genuine only as long as this process has their source port: see own.
const portLinger = time.Second

func (s *portSocket) enter() bool {
	if s.leaving.Load() {
		return false
	}
	if s.users.Add(1) > 0 {
		return true
	}
	s.users.Add(-1)
	return false
}

func (s *portSocket) leave() { s.users.Add(-1) }

func (s *portSocket) close() {
	s.users.Add(closed)
	for s.users.Load() != closed {
		runtime.Gosched() //verbena:allow nosleep nobody sleeps between enter and leave
	}
	unix.Close(s.fd) //verbena:allow nosleep a socket without linger
}

// sourcePort finds or opens the socket of a port. It returns nil if the port is not available or if there are too many
// sockets. The train then leaves from Port. The system calls do not sleep.
func (e *UDPEndpoint) sourcePort(port uint16) *portSocket {
	e.ports.mu.Lock()
	defer e.ports.mu.Unlock()
	if s := e.ports.m[port]; s != nil {
		if s.forgotten != nil {
			s.forgotten.Stop()
			s.forgotten = nil
			s.leaving.Store(false)
		}
		return s
	}
	if e.ports.closed || len(e.ports.m) >= maxSourcePorts {
		e.tx.portFallbacks.Add(1)
		return nil
	}
	fd, err := e.sendSocket(port)
	if err != nil {
		e.tx.portFallbacks.Add(1)
		return nil
	}
	s := &portSocket{fd: fd}
	if e.ports.m == nil {
		e.ports.m = map[uint16]*portSocket{}
	}
	e.ports.m[port] = s
	e.bound.add(port)
	return s
}

// sendSocket opens a socket that only sends.
func (e *UDPEndpoint) sendSocket(port uint16) (int, error) {
	family := unix.AF_INET6
	if e.addr.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, err
	}
	if err = e.sendOptions(fd); err == nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // the minimum
		err = unix.Bind(fd, socketAddress(e.addr, port, e.ifindex))
	}
	if err != nil {
		unix.Close(fd) //verbena:allow nosleep it has sent nothing that could keep it
		return -1, err
	}
	return fd, nil
}

// ForgetPort implements [PortForgetter.ForgetPort]: it closes the socket of the port after portLinger, unless the port
// is used again.
func (e *UDPEndpoint) ForgetPort(port uint16) {
	e.ports.mu.Lock()
	defer e.ports.mu.Unlock()
	s := e.ports.m[port]
	if s == nil || s.forgotten != nil {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(portLinger, func() {
		e.ports.mu.Lock()
		current := e.ports.m[port] == s && s.forgotten == t
		if current {
			delete(e.ports.m, port)
			e.bound.remove(port)
		}
		e.ports.mu.Unlock()
		if current {
			s.close()
		}
	})
	s.forgotten = t
	s.leaving.Store(true)
}

// closePorts closes all sockets. No further socket can be opened.
func (e *UDPEndpoint) closePorts() {
	e.ports.mu.Lock()
	defer e.ports.mu.Unlock()
	for port, s := range e.ports.m {
		if s.forgotten != nil {
			s.forgotten.Stop()
		}
		e.bound.remove(port)
		s.close()
	}
	e.ports.m, e.ports.closed = nil, true
}
