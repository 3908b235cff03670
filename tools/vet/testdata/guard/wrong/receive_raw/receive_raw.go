package receive_raw

import (
	"os"

	"golang.org/x/sys/unix"
)

type socket struct {
	end  int
	file *os.File
}

func open() (*socket, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &socket{end: ends[0], file: os.NewFile(uintptr(ends[1]), "socket")}, nil
}

func (s *socket) serve(b []byte) {
	unix.Read(s.end, b)             // want "receive: .*serve reads from a socket by unix.Read"
	s.file.Read(b)                  // want "receive: .*serve reads from a socket by ..os.File..Read"
	unix.Recvmsg(s.end, b, nil, 0)  // want "receive: .*serve receives from a socket by unix.Recvmsg"
	unix.Recvfrom(int(s.end), b, 0) // want "receive: .*serve receives from a socket by unix.Recvfrom"
	raw, _ := s.file.SyscallConn()
	raw.Read(func(fd uintptr) bool {
		_, _, _, _, err := unix.Recvmsg(int(fd), b, nil, 0) // want "receive: .*receives from a socket by unix.Recvmsg"
		return err != unix.EAGAIN
	})
}
