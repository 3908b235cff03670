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
	// Uverbs has the devices. It outlives the Server.
	Uverbs *uverbs.Server
	// CM is the connection manager; nil: there is none.
	CM *ucma.Server
	// Quota counts what users hold; nil counts nothing.
	Quota *quota.Ledger
	// Copies bounds the accesses to the memory of a user's programs that go on at a time; nil: nothing does.
	Copies func(u *quota.User) *umem.Copies
	// Rights closes surplus descriptors of clients; nil: some of its own does.
	Rights *rights.Queues
	// Kept keeps users charged for what the service has made for their programs and these keep; nil does not.
	Kept *kept.Keeper
	// Pollers look at the queues of clients; nil: some of its own.
	Pollers *poller.Pollers
	// Log gets what has no caller to be returned to; nil discards it.
	Log *slog.Logger
}

// Server opens device files. It is safe for concurrent use.
type Server struct {
	cfg Config

	mu       sync.Mutex
	accounts map[accountKey]*account
}

// New makes a Server.
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
	return &Server{cfg: cfg, accounts: map[accountKey]*account{}}
}

// Client is the process at the other end of a connection, as the kernel knows it.
type Client struct {
	principal.Principal
	PID, UID int
	Name     string   // of what it executes, for people
	Process  *os.File // a pidfd; the File closes it
}

// Info describes a file that was opened.
type Info struct {
	Device string // such as rxe0
	Driver uapi.DriverID
	ABI    int
}

// Open opens the device of a name, such as rxe0, for a client, or the connection manager (devfile.ConnectionManager). ENODEV if there is no such
// device. It may sleep. Whatever becomes of it, the Client's Process is the Server's.
func (s *Server) Open(c Client, name string) (_ *File, _ Info, err error) {
	f := &File{srv: s, client: c, bell: -1, user: s.cfg.Quota.Account(c.Account), kept: s.cfg.Kept.Of(s.cfg.Quota.Account(c.Account)), events: map[uint32]inode{}, nextNumber: firstNumber}
	f.space.windows = umem.NewLocal()
	defer func() {
		if err != nil {
			f.release()
		}
	}()
	if err := f.take(quota.Descriptors, connectionDescriptors); err != nil {
		return nil, Info{}, err
	}
	if f.acct, err = s.accountOf(c); err != nil {
		return nil, Info{}, err
	}
	if err := f.makeSignal(); err != nil {
		return nil, Info{}, err
	}
	if name == devfile.ConnectionManager {
		return f, Info{Device: name}, f.openCM()
	}
	for _, d := range s.cfg.Uverbs.Devices() {
		if d.IB().Name() == name {
			return f, Info{Device: name, Driver: d.DriverID(), ABI: d.DriverABI()}, f.openDevice(d)
		}
	}
	return nil, Info{}, fmt.Errorf("open %q: this service has no such device (`verbena link show` lists them): %w", name, syscall.ENODEV)
}

// connectionDescriptors is what a connection costs the service, beside itself and what it shares with the client: a pidfd, and that of its
// account.
const connectionDescriptors = 2

// lockLimit is the client's RLIMIT_MEMLOCK. Of a process that is not wholly the client's any more, since it executes a set-uid program, the
// capabilities do not count: others may use the connection meanwhile.
func (c Client) lockLimit() (limit uint64, err error) {
	var st unix.Stat_t
	if err = unix.Stat("/proc/"+strconv.Itoa(c.PID), &st); err == nil {
		if int(st.Uid) == c.UID {
			limit, err = umem.LockLimit(c.PID)
		} else {
			limit, err = umem.SoftLockLimit(c.PID)
		}
	}
	if err != nil || exited(c.Process) { // the number may be another's by now
		return 0, umem.ErrLimit
	}
	return limit, nil
}

// account is what all files of one process are charged to.
type account struct {
	*umem.Account
	srv   *Server
	key   accountKey
	owner Client // with a pidfd of the account's own
	users int    // files; under Server.mu
}

type accountKey struct{ pid, uid int }

// accountOf returns the account of a client's process for one more file, which account.put ends.
func (s *Server) accountOf(c Client) (*account, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := accountKey{c.PID, c.UID}
	a := s.accounts[key]
	if a == nil || exited(a.owner.Process) { // the number is another's now
		var pidfd int
		conn, err := c.Process.SyscallConn()
		if err == nil {
			cerr := conn.Control(func(fd uintptr) { pidfd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
			err = errors.Join(err, cerr)
		}
		if err != nil {
			return nil, fmt.Errorf("open process %d: %w", c.PID, err)
		}
		a = &account{srv: s, key: key, owner: c}
		a.owner.Process = os.NewFile(uintptr(pidfd), "pidfd")
		a.Account = umem.NewLimitedAccount(a.owner.lockLimit)
		s.accounts[key] = a
	}
	a.users++
	return a, nil
}

// put ends a file's use of the account.
func (a *account) put() {
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

// exited reports whether the process of a pidfd has ended: then the pidfd is readable.
func exited(pidfd *os.File) bool {
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

// errno returns what the client sees of an error.
func errno(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) && e > 0 {
		return e
	}
	return syscall.EIO
}
