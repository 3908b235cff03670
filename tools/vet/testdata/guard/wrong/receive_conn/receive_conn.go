package receive_conn

import (
	"bufio"
	"io"
	"net"
)

// Conn is a connection of a user's.
type Conn struct{ *net.UnixConn }

func request(c *net.UnixConn, b []byte) error {
	if _, err := c.Read(b); err != nil { // want "receive: .*request reads from a socket"
		return err
	}
	_, err := io.ReadFull(c, b) // want "receive: .*request passes a socket as io.Reader to a reader"
	return err
}

func (c Conn) rest(b []byte) error {
	if _, err := c.Read(b); err != nil { // want "receive: .*rest reads from a socket"
		return err
	}
	_, err := bufio.NewReader(c).ReadString(0) // want "receive: .*passes a socket as io.Reader"
	return err
}

func message(c *net.UnixConn, b, rights []byte) {
	c.ReadMsgUnix(b, rights) // want "receive: .*message receives from a socket by ..net.UnixConn..ReadMsgUnix"
}
