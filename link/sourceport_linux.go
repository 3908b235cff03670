package link

import (
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxSourcePorts bounds the sockets that an endpoint sends from beside its own.
const maxSourcePorts = 128

// sourcePorts are the sockets of an endpoint that send from other ports than Port. One is opened when the first train
// to a destination wants it, and found by that destination's entry from then on. Nothing arrives there.
type sourcePorts struct {
	mu     sync.Mutex
	closed bool
	m      map[uint16]*portSocket
}

// portSocket is a socket that sends from a port.
type portSocket struct {
	fd    int
	users atomic.Int64 // as UDPEndpoint.users
}

func (s *portSocket) enter() bool {
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

// sourcePort finds or opens the socket of a port. It is nil where the port is somebody else's or there are too many
// sockets: then the train leaves from Port. All the system calls are ones that do not sleep.
func (e *UDPEndpoint) sourcePort(port uint16) *portSocket {
	e.ports.mu.Lock()
	defer e.ports.mu.Unlock()
	if s := e.ports.m[port]; s != nil {
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
	return s
}

// sendSocket makes a socket that only sends.
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
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // the least there can be
		err = unix.Bind(fd, socketAddress(e.addr, port, e.ifindex))
	}
	if err != nil {
		unix.Close(fd) //verbena:allow nosleep it has sent nothing that could keep it
		return -1, err
	}
	return fd, nil
}

// ForgetPort is [PortForgetter.ForgetPort]: it closes the port's socket.
func (e *UDPEndpoint) ForgetPort(port uint16) {
	e.ports.mu.Lock()
	s := e.ports.m[port]
	delete(e.ports.m, port)
	e.ports.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// closePorts closes all of them, for good.
func (e *UDPEndpoint) closePorts() {
	e.ports.mu.Lock()
	defer e.ports.mu.Unlock()
	for _, s := range e.ports.m {
		s.close()
	}
	e.ports.m, e.ports.closed = nil, true
}
