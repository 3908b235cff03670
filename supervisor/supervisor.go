package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/kept"
	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/rights"
	"verbena/internal/shm"
	"verbena/rdmacm/ucma"
	"verbena/umem"
	"verbena/uverbs"
	"verbena/uverbs/poller"
)

// SupervisorConfig configures a Supervisor.
type SupervisorConfig struct {
	// Uverbs has the devices. It outlives the Supervisor.
	Uverbs *uverbs.Server
	// CM is the connection manager of the devices; nil: programs have none. It outlives the Supervisor.
	CM *ucma.Server
	// Links makes and removes devices for programs of managers; nil: no program may.
	Links Links
	// Dir is an existing, private directory on a memory file system, usually below /dev/shm. The Supervisor makes it
	// searchable for others, and makes in it the trees of /dev and /sys that programs see. Each directory stays this
	// user's.
	Dir string
	// Node is the owner and mode of the device files.
	Node Node
	// Quota counts what the users of sessions hold, and refuses what is too much; nil counts nothing.
	Quota *quota.Ledger
	// AskHelper makes sessions access their programs by SessionInfo.Helper alone, as where Yama restricts this process.
	AskHelper bool
	// Doorbells is which programs ring without a trap.
	Doorbells Doorbells
	// Pollers look at the queues of those; nil: some of its own.
	Pollers *poller.Pollers
	// Authority decides whom a program is charged to, and whether it manages the service; nil: one without configured
	// managers.
	Authority *principal.Authority
	// Rights closes descriptors that programs have sent where none belong; nil: some of its own does.
	Rights *rights.Queues
	// Kept keeps users charged for files, pipes and sockets of the service's that their programs keep; nil does not.
	Kept *kept.Keeper
	// Log gets errors that have no caller to be returned to, and at the level of Debug the device files that are opened
	// and closed, and the commands that are refused. Records about a session have the attribute uid. nil discards.
	Log *slog.Logger

	// pause, if not nil, is called at named points with the thread of the call that is being answered; for tests. It may
	// panic.
	pause func(point string, tid uint32)
}

// Supervisor answers the trapped system calls of programs. It is safe for concurrent use.
type Supervisor struct {
	cfg    SupervisorConfig
	server server
	trees  *trees
	own    *userTree // of this process's user

	stop, stopper *os.File // stop has no writer any more once Close begins
	notify        *os.File // inotify
	notifyFD      int
	reader        sync.WaitGroup

	sessionCount atomic.Uint64
	fileCount    atomic.Uint64
	looks        atomic.Int64 // for last closes
	allCopies    *umem.Copies
	pollers      *poller.Pollers
	natives      natives

	shown struct {
		sync.Mutex
		err   error // of the last update
		asked bool  // Shown has reported an earlier one, so that new ones are logged
	}

	mu           sync.Mutex
	closed       bool
	sessions     map[*Session]struct{}
	files        map[inode]*openFile           // open device files, by the queue file that the program has
	watches      map[int32]*openFile           // the same by inotify watch
	settles      map[*quota.User]chan struct{} // users for whom a thread waits in settle; closed when it has waited
	netlinks     map[inode]*netlinkSocket
	netlinkUsers map[*quota.User]*netlinkUser
	waits        map[*quota.User]*atomic.Int64 // calls that wait for events of the connection manager, by user
	copies       map[*quota.User]*umem.Copies
}

// server is a uverbs.Server, or a double of one.
type server interface {
	devices() []device
	open(name string, p uverbs.Process, m uverbs.Memory) (uverbsFile, error)
	onChange(func())
	resources() []uverbs.ContextInfo
	queuePairUser(dev *ib.Device, num uint32) (*quota.User, bool)
}

// commandFile is a uverbs.File, or one of the connection manager.
type commandFile interface {
	Write(c uverbs.Caller, addr uint64, n int) (int, error)
	Ioctl(c uverbs.Caller, request uint32, arg uint64) error
	Fail(why error)
	Close()
}

// uverbsFile is a uverbs.File.
type uverbsFile interface {
	commandFile
	poller.Ringer
}

type uverbsServer struct{ *uverbs.Server }

func (s uverbsServer) devices() (d []device) {
	for _, u := range s.Devices() {
		d = append(d, deviceOf(u))
	}
	return d
}

func (s uverbsServer) open(name string, p uverbs.Process, m uverbs.Memory) (uverbsFile, error) {
	f, err := s.Open(name, p, m)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (s uverbsServer) onChange(f func()) { s.OnChange(f) }

func (s uverbsServer) queuePairUser(dev *ib.Device, num uint32) (*quota.User, bool) {
	return s.QueuePairUser(dev, num)
}

func (s uverbsServer) resources() []uverbs.ContextInfo { return s.Resources() }

// inode identifies a file on this machine.
type inode struct{ dev, ino uint64 }

// NewSupervisor makes the tree of virtual files, and keeps it up with the devices. It may sleep.
func NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	return newSupervisor(cfg, uverbsServer{cfg.Uverbs})
}

func newSupervisor(cfg SupervisorConfig, srv server) (*Supervisor, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Authority == nil {
		a, err := principal.New(nil, overflowUID())
		if err != nil {
			return nil, err
		}
		cfg.Authority = a
	}
	if cfg.Rights == nil {
		cfg.Rights = &rights.Queues{}
	}
	if cfg.Node.Mode == 0 {
		cfg.Node.Mode = 0o666
	}
	s := &Supervisor{
		cfg:          cfg,
		server:       srv,
		sessions:     make(map[*Session]struct{}),
		files:        make(map[inode]*openFile),
		watches:      make(map[int32]*openFile),
		netlinks:     make(map[inode]*netlinkSocket),
		netlinkUsers: make(map[*quota.User]*netlinkUser),
		waits:        make(map[*quota.User]*atomic.Int64),
		copies:       make(map[*quota.User]*umem.Copies),

		allCopies: umem.NewCopies(maxAllCopies, nil),
		pollers:   cfg.Pollers,
		natives:   natives{users: make(map[*quota.User]int)},
	}
	if s.pollers == nil {
		s.pollers = poller.New(cfg.Log)
	}
	var err error
	if s.trees, err = newTrees(filepath.Join(cfg.Dir, "trees"), cfg.Quota, cfg.Log, s.describe); err != nil {
		return nil, err
	}
	if s.own, err = s.trees.enter(s.trees.own); s.own.tree == nil {
		s.trees.close()
		return nil, err
	}
	s.shown.err = err
	if err := os.Chmod(cfg.Dir, 0o711); err != nil {
		s.trees.close()
		return nil, fmt.Errorf("make the trees of virtual files reachable: %w", err)
	}
	if s.stop, s.stopper, err = os.Pipe(); err != nil {
		s.trees.close()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		s.trees.close()
		s.stop.Close()
		s.stopper.Close()
		return nil, fmt.Errorf("watch for closed device files: inotify: %w; see /proc/sys/fs/inotify/max_user_instances", err)
	}
	s.notifyFD = fd
	s.notify = os.NewFile(uintptr(fd), "inotify")
	s.reader.Go(s.watchCloses)
	srv.onChange(s.update)
	s.update() // what has changed since the tree was made
	return s, nil
}

// Refresh brings the files below /sys up to the devices, for programs that read them without naming their whole path: a
// file that a program opens by its absolute path is brought up to date then. It is for changes of what a device says of
// itself, such as its ports; that devices come and go is noticed anyway. It may sleep.
func (s *Supervisor) Refresh() { s.update() }

// describe makes the entries of the devices that there are.
func (s *Supervisor) describe() entries { return describe(s.server.devices(), s.cfg.CM != nil) }

// update brings the trees up to the devices.
func (s *Supervisor) update() {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return
	}
	err := s.trees.update()
	s.shown.Lock()
	defer s.shown.Unlock()
	if err != nil && s.shown.err == nil && s.shown.asked {
		s.cfg.Log.Warn("programs do not see the devices as they are", "err", err)
	}
	s.shown.err = err
}

// Shown reports why programs do not see the devices as they are; it wraps an errno, ENOSPC where /dev/shm is full.
// After an error it tries again first. Later errors are logged. It may sleep.
func (s *Supervisor) Shown() error {
	s.shown.Lock()
	s.shown.asked = true
	err := s.shown.err
	s.shown.Unlock()
	if err != nil {
		s.update()
		s.shown.Lock()
		err = s.shown.err
		s.shown.Unlock()
	}
	return s.explainFull(err)
}

// explainFull adds to an error of a tree what to do where the file system is full.
func (s *Supervisor) explainFull(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w; %s is full (df %[2]s): %s", err, filepath.Dir(s.cfg.Dir), shm.Enlarge(s.cfg.Dir))
	}
	return err
}

// closePatience is how long Close waits for calls that do not end, since the memory that they are in does not answer.
const closePatience = 2 * time.Second

// Close ends every session: open device files are closed, and programs that still run are left to their guardians. It
// may sleep, but not without bound: a session with a call that does not end within some seconds is left behind,
// and logged.
func (s *Supervisor) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	var sessions []*Session
	for t := range s.sessions {
		sessions = append(sessions, t)
	}
	s.mu.Unlock()
	patience, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	late := patience.Done()
	s.barAll()
	s.stopper.Close()
	for _, t := range sessions {
		select {
		case <-t.done:
		case <-late:
			select {
			case <-t.done:
			default:
				t.log.Warn("session left behind: a call of it does not end", "args", t.info.Args)
			}
		}
	}
	s.closeFiles(late, func(*openFile) bool { return true })
	s.closeNetlinks()
	s.notify.Close()
	s.reader.Wait()
	s.stop.Close()
	s.trees.close()
}

const (
	// inotifyEvent is the size of struct inotify_event without the name, which a watch on a file does not report.
	inotifyEvent = unix.SizeofInotifyEvent
	// inotifyPause is between two looks at what has been closed: the same event coming again and again is one.
	inotifyPause = time.Millisecond
)

// watchCloses ends device files whose last descriptor has gone, by whatever way: close, exit, exec or a kill.
func (s *Supervisor) watchCloses() {
	buf := make([]byte, 4096*inotifyEvent)
	for ; ; time.Sleep(inotifyPause) {
		n, err := s.notify.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				s.cfg.Log.Warn("watch for closed device files", "err", err)
			}
			return
		}
		closed := map[*openFile]struct{}{}
		for b := buf[:n]; len(b) >= inotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			b = b[inotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				s.lookAtAll()
			case mask&(unix.IN_CLOSE_WRITE|unix.IN_CLOSE_NOWRITE) != 0:
				s.mu.Lock()
				f := s.watches[wd]
				s.mu.Unlock()
				if f != nil {
					closed[f] = struct{}{}
				}
			}
		}
		for f := range closed {
			f.closedOne()
		}
	}
}

// lookAtAll looks at each file as if a descriptor of it had been closed.
func (s *Supervisor) lookAtAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		f.closedOne()
	}
}

// barPatience is how long Close waits for native doorbells to fail: less than closePatience, so that a program which
// makes that take longer leaves time for the end of the others.
const barPatience = closePatience / 4

// barAll lets the doorbells of all programs fail that are native, and waits for that, but not long.
func (s *Supervisor) barAll() {
	s.mu.Lock()
	var all sync.WaitGroup
	for _, f := range s.files {
		if f.bell != nil {
			all.Go(f.bar)
		}
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(barPatience):
	}
}

// closeFiles closes those open device files that meet the condition, and waits for that until late is closed, if it is
// not nil.
func (s *Supervisor) closeFiles(late <-chan struct{}, which func(*openFile) bool) {
	s.mu.Lock()
	var files []*openFile
	for _, f := range s.files {
		if which(f) {
			files = append(files, f)
		}
	}
	s.mu.Unlock()
	for _, f := range files {
		f.close()
		select {
		case <-f.ended:
		case <-late:
		}
	}
}

func (s *Supervisor) file(i inode) *openFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[i]
}
