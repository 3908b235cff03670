package receive_function

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// receive takes the descriptors of each message.
//
//verbena:receives
func receive(c *net.UnixConn, b, rights []byte) (int, error) {
	n, _, _, _, err := c.ReadMsgUnix(b, rights)
	return n, err
}

// Files and pipes are read as ever, and sockets are written to.
func others(c *net.UnixConn, path string, b []byte) error {
	f, err := os.OpenFile(path, unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	unix.Read(ends[0], b)
	io.ReadFull(f, b)
	_, err = io.WriteString(c, "text")
	return err
}
