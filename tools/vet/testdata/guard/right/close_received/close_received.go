package close_received

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

type pool chan struct{}

// close closes a few at a time.
//
//verbena:closes
func (p pool) close(f *os.File) {
	p <- struct{}{}
	f.Close()
	<-p
}

//verbena:receives
func receive(c *net.UnixConn, p pool, b, oob []byte) (*os.File, error) {
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
		p.close(os.NewFile(uintptr(fd), "passed"))
	}
	return os.NewFile(uintptr(fds[0]), "passed"), nil
}

func serve(conn *net.UnixConn, p pool, path string, b []byte) error {
	f, err := receive(conn, p, b, b)
	if err != nil {
		return err
	}
	p.close(f)
	own, err := os.OpenFile(path, unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return own.Close()
}
