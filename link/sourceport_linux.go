package link

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

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
	fd        int
	users     atomic.Int64 // as UDPEndpoint.users
	leaving   atomic.Bool  // forgotten is set: sourcePort has to find the socket again
	forgotten *time.Timer  // closes the socket when it fires; nil: the port is in use. Under sourcePorts.mu.
}

// portLinger is the time from [UDPEndpoint.ForgetPort] until the port's socket is closed. Packets that wait in a socket of this process are genuine
// as long as their source port is this process's: see own.
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

// sourcePort finds or opens the socket of a port. It is nil where the port is somebody else's or there are too many
// sockets: then the train leaves from Port. All the system calls are ones that do not sleep.
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

// ForgetPort is [PortForgetter.ForgetPort]: it closes the port's socket some time later, unless the port is used again.
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

// closePorts closes all of them, for good.
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
