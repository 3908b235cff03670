package close_received

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

//verbena:receives
func receive(c *net.UnixConn, b, oob []byte) (f *os.File, err error) {
	_, n, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	m, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(m) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&m[0])
	if err != nil {
		return nil, err
	}
	for _, fd := range fds[1:] {
		unix.Close(fd) // want "close: .*receive closes a descriptor that came by a socket"
	}
	return os.NewFile(uintptr(fds[0]), "passed"), nil
}

type client struct{ files []*os.File }

func (c *client) serve(conn *net.UnixConn, b []byte) error {
	f, err := receive(conn, b, b)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		discard(f)
		return nil
	}
	c.files = append(c.files, f)
	return nil
}

func discard(f *os.File) {
	defer f.Close() // want "close: .*discard closes a descriptor that came by a socket"
}

func (c *client) end() {
	for _, f := range c.files {
		go func() { f.Close() }() // want "close: .*end.1 closes a descriptor that came by a socket"
	}
}
