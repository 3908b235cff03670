package remote

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl/devfile"
	"verbena/internal/kept"
	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/rights"
	"verbena/rdmacm/ucma"
	"verbena/uapi"
	"verbena/umem"
	"verbena/uverbs"
	"verbena/uverbs/poller"
)

// Config configures a Server.
type Config struct {
	// Uverbs provides the devices. Uverbs must outlive the Server.
	Uverbs *uverbs.Server
	// CM is the connection manager; nil means that the service has none.
	CM *ucma.Server
	// Quota counts the resources of users; nil means no limits.
	Quota *quota.Ledger
	// Copies returns the limit of concurrent accesses to the memory of a user's programs; nil means no limit.
	Copies func(u *quota.User) *umem.Copies
	// Rights closes unexpected descriptors of clients. If Rights is nil, the Server creates its own.
	Rights *rights.Queues
	// Kept keeps charging users for file descriptions that their programs have kept. If Kept is nil, the charge
	// ends with the file.
	Kept *kept.Keeper
	// Pollers polls the queues of clients. If Pollers is nil, the Server creates its own.
	Pollers *poller.Pollers
	// Refused, if not nil, is called with each refused command of a device file. It must not sleep.
	Refused func(uverbs.Refusal)
	// Log receives errors that cannot be returned to a caller. A nil Log discards them.
	Log *slog.Logger
}

// Server opens device files. Server is safe for concurrent use.
type Server struct {
	cfg Config

	mu       sync.Mutex
	accounts map[accountKey]*processAccount
}

// New returns a Server.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Pollers == nil {
		cfg.Pollers = poller.New(cfg.Log)
	}
	if cfg.Rights == nil {
		cfg.Rights = &rights.Queues{}
	}
	return &Server{cfg: cfg, accounts: map[accountKey]*processAccount{}}
}

// Client is the process at the other end of a connection, with the credentials that the kernel reports.
type Client struct {
	principal.Principal
	PID, UID int
	Name     string   // name of the client's program, for messages
	Process  *os.File // a pidfd, which the File closes
}

// openInfo describes an opened file.
type openInfo struct {
	Device string // name of the device, such as rxe0
	Driver uapi.DriverID
	ABI    int
}

// Open opens the named device, such as rxe0, or the connection manager (devfile.ConnectionManager) for a client. The
// error is ENODEV if there is no such device. It may sleep. The Server takes ownership of c.Process, even if Open
// fails.
func (s *Server) Open(c Client, name string) (_ *File, _ openInfo, err error) {
	f := &File{srv: s, client: c, bell: -1, user: s.cfg.Quota.Account(c.Account),
		kept: s.cfg.Kept.ObjectsOf(s.cfg.Quota.Account(c.Account)), events: map[uint32]eventFileID{}, nextNumber: firstNumber}
	f.space.windows = umem.NewLocal()
	defer func() {
		if err != nil {
			f.freeResources()
		}
	}()
	if err := f.chargeQuota(quota.Descriptors, descriptorsPerConnection); err != nil {
		return nil, openInfo{}, err
	}
	if f.acct, err = s.acquireAccount(c); err != nil {
		return nil, openInfo{}, err
	}
	if err := f.makeEndSignal(); err != nil {
		return nil, openInfo{}, err
	}
	if name == devfile.ConnectionManager {
		return f, openInfo{Device: name}, f.openCM()
	}
	for _, d := range s.cfg.Uverbs.Devices() {
		if d.IB().Name() == name {
			return f, openInfo{Device: name, Driver: d.DriverID(), ABI: d.DriverABI()}, f.openDevice(d)
		}
	}
	return nil, openInfo{}, fmt.Errorf("open %q: this service has no such device (`verbena link show` lists them): %w",
		name,
		syscall.ENODEV)
}

// descriptorsPerConnection is the number of descriptors per connection, without the connection itself and the
// descriptors shared with the client. The descriptors are the client's pidfd, and the pidfd of its account.
const descriptorsPerConnection = 2

// memlockLimit returns the client's RLIMIT_MEMLOCK. If the process now executes a set-uid program, memlockLimit ignores
// the capabilities of that program, because other processes may use the connection.
func (c Client) memlockLimit() (limit uint64, err error) {
	var st unix.Stat_t
	if err = unix.Stat("/proc/"+strconv.Itoa(c.PID), &st); err == nil {
		if int(st.Uid) == c.UID {
			limit, err = umem.LockLimit(c.PID)
		} else {
			limit, err = umem.SoftLockLimit(c.PID)
		}
	}
	if err != nil || hasExited(c.Process) { // the process ID may have been reused
		return 0, umem.ErrLimit
	}
	return limit, nil
}

// processAccount is the account of locked memory that all files of a process share.
type processAccount struct {
	*umem.Account
	srv   *Server
	key   accountKey
	owner Client // owner with a separate pidfd for the account
	users int    // number of files; guarded by Server.mu
}

type accountKey struct{ pid, uid int }

// acquireAccount returns the account of a client's process, with a reference for one more file. account.put releases
// the reference.
func (s *Server) acquireAccount(c Client) (*processAccount, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := accountKey{c.PID, c.UID}
	a := s.accounts[key]
	if a == nil || hasExited(a.owner.Process) { // the process ID was reused
		var pidfd int
		conn, err := c.Process.SyscallConn()
		if err == nil {
			cerr := conn.Control(func(fd uintptr) { pidfd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
			err = errors.Join(err, cerr)
		}
		if err != nil {
			return nil, fmt.Errorf("open process %d: %w", c.PID, err)
		}
		a = &processAccount{srv: s, key: key, owner: c}
		a.owner.Process = os.NewFile(uintptr(pidfd), "pidfd")
		a.Account = umem.NewLimitedAccount(a.owner.memlockLimit)
		s.accounts[key] = a
	}
	a.users++
	return a, nil
}

// release releases the reference of a file.
func (a *processAccount) release() {
	s := a.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.users--; a.users > 0 {
		return
	}
	if s.accounts[a.key] == a {
		delete(s.accounts, a.key)
	}
	a.owner.Process.Close()
}

// hasExited reports whether the process of a pidfd has ended. The pidfd of an ended process is readable.
func hasExited(pidfd *os.File) bool {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return true
	}
	over := true
	_ = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(fds, 0)
			if err != unix.EINTR {
				over = err != nil || n > 0
				return
			}
		}
	})
	return over
}

// errnoOf returns the error number for the client.
func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) && e > 0 {
		return e
	}
	return syscall.EIO
}
