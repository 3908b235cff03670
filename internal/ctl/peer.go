package ctl

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/internal/procfile"
)

// PeerCredentials returns the process and the user at the other end of a connection. The kernel recorded both when
// the connection was made (SO_PEERCRED, unix(7)). pid is 0 for a process of another pid namespace that is not
// visible here.
func PeerCredentials(c *net.UnixConn) (pid, uid int, err error) {
	var cred *unix.Ucred
	raw, err := c.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		})
		if cerr != nil {
			err = cerr
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("look up the user of a connection: %w", err)
	}
	return int(cred.Pid), int(cred.Uid), nil
}

// idMap describes the user IDs of a user namespace.
type idMap struct {
	Overflow int  // ID that represents all unmapped IDs
	All      bool // all IDs are mapped
}

// IsAnonymous reports whether a user ID may represent several users.
func (m idMap) IsAnonymous(uid int) bool { return !m.All && uid == m.Overflow }

// IsOwn reports whether a user ID is the user ID of this process. The overflow ID never is an own ID.
func (m idMap) IsOwn(uid int) bool { return uid == os.Geteuid() && !m.IsAnonymous(uid) }

// OwnIDMap returns the map of this process.
func OwnIDMap() idMap { return readIDMap() }

// readIDMap is read once, because the user namespace of a process with several threads cannot change.
var readIDMap = sync.OnceValue(func() idMap {
	m := idMap{Overflow: 65534}
	if b, err := procfile.ReadNoFollow("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			m.Overflow = n
		}
	}
	b, err := procfile.ReadNoFollow("/proc/self/uid_map")
	m.All = err == nil && isIdentityMap(string(b))
	return m
})

// isIdentityMap reports whether a uid_map maps every ID to itself, as in the first user namespace.
func isIdentityMap(uidMap string) bool {
	f := strings.Fields(uidMap)
	return len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}
