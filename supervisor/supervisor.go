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
	"verbena/internal/pci"
	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/rights"
	"verbena/internal/shm"
	"verbena/rdmacm/ucma"
	"verbena/umem"
	"verbena/uverbs"
	"verbena/uverbs/poller"
)

// SupervisorConfig is the configuration of a Supervisor.
type SupervisorConfig struct {
	// Uverbs provides the devices. The server must outlive the Supervisor.
	Uverbs *uverbs.Server
	// CM is the connection manager of the devices; nil means none. The connection manager must outlive the
	// Supervisor.
	CM *ucma.Server
	// Links makes and removes devices for programs of managers. If Links is nil, no program may make or remove
	// devices.
	Links Links
	// PCI returns the PCI function as which programs see a device, or nil for none. A nil PCI means none for all devices.
	// PCI must not sleep.
	PCI func(device string) *pci.Function
	// Dir is an existing, private directory on a memory file system, usually below /dev/shm. The Supervisor makes
	// Dir searchable for other users, and creates the trees of /dev and /sys for programs in it. This process's
	// user stays the owner of the directories.
	Dir string
	// Node is the owner and mode of the device files.
	Node Node
	// Quota counts the resources of the users of sessions and enforces limits; nil means no accounting.
	Quota *quota.Ledger
	// AskHelper makes sessions access their programs only by SessionInfo.Helper, as if Yama restricted this
	// process.
	AskHelper bool
	// Doorbells selects the programs that have native doorbells.
	Doorbells Doorbells
	// Pollers polls the queues of native doorbells. If Pollers is nil, the Supervisor makes its own.
	Pollers *poller.Pollers
	// Authority decides which account is charged for a program, and whether the program manages the service. If it
	// is nil, the Supervisor uses an Authority without configured managers.
	Authority *principal.Authority
	// Rights closes unexpected descriptors that programs send. If Rights is nil, the Supervisor makes its own.
	Rights *rights.Queues
	// Kept charges users for files, pipes and sockets of the service that their programs keep; nil means no charge.
	Kept *kept.Keeper
	// Refused, if not nil, is called with each refused command of a device file. It must not sleep.
	Refused func(uverbs.Refusal)
	// Log receives errors that cannot be returned to a caller. At level Debug, Log also receives opens and closes
	// of device files, and refused commands. Records about a session have the attribute uid. A nil Log discards all
	// records.
	Log *slog.Logger

	// pause, if not nil, is called at named points with the thread of the current call; only tests set it. It may
	// panic.
	pause func(point string, tid uint32)
}

// Supervisor answers the trapped system calls of programs. Supervisor is safe for concurrent use.
type Supervisor struct {
	cfg    SupervisorConfig
	server server
	trees  *userTrees
	own    *userTree // tree for this process's user

	stop, stopper *os.File // stop loses its last writer when Close begins
	notify        *os.File // inotify instance
	notifyFD      int
	reader        sync.WaitGroup

	sessionCount atomic.Uint64
	fileCount    atomic.Uint64
	looks        atomic.Int64 // number of checks for last closes
	allCopies    *umem.Copies
	pollers      *poller.Pollers
	natives      nativeFileCounter

	shown struct {
		sync.Mutex
		err   error // error of the last update
		asked bool  // Shown was called before, so update logs new errors
	}

	mu           sync.Mutex
	closed       bool
	treeHolds    int // calls of HoldTrees without release
	sessions     map[*Session]struct{}
	files        map[inode]*openFile           // open device files, by the inode of the program's queue file
	watches      map[int32]*openFile           // open device files, by inotify watch
	closeWaits   map[*quota.User]chan struct{} // users with a thread in Supervisor.awaitCloses; closed after its wait
	netlinks     map[inode]*netlinkSocket
	netlinkUsers map[*quota.User]*netlinkUserState
	waits        map[*quota.User]*atomic.Int64 // number of calls that wait for events of the connection manager, by user
	copies       map[*quota.User]*umem.Copies
}

// server is the interface of a uverbs.Server or of a fake.
type server interface {
	devices() []device
	open(name string, p uverbs.Process, m uverbs.Memory) (uverbsFile, error)
	onChange(func())
	resources() []uverbs.ContextInfo
	queuePairUser(dev *ib.Device, num uint32) (*quota.User, bool)
}

// commandFile is the interface of a uverbs.File or of a connection manager's file.
type commandFile interface {
	Write(c uverbs.Caller, addr uint64, n int) (int, error)
	Ioctl(c uverbs.Caller, request uint32, arg uint64) error
	FailDevice(why error)
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

// NewSupervisor makes the trees of virtual files, and updates them when devices change. It may sleep.
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
		netlinkUsers: make(map[*quota.User]*netlinkUserState),
		waits:        make(map[*quota.User]*atomic.Int64),
		copies:       make(map[*quota.User]*umem.Copies),

		allCopies: umem.NewCopies(maxAllCopies, nil),
		pollers:   cfg.Pollers,
		natives:   nativeFileCounter{users: make(map[*quota.User]int)},
	}
	if s.pollers == nil {
		s.pollers = poller.New(cfg.Log)
	}
	var err error
	if s.trees, err = newTrees(filepath.Join(cfg.Dir, "trees"), cfg.Quota, cfg.Log, s.describeDevices); err != nil {
		return nil, err
	}
	if s.own, err = s.trees.acquireTree(s.trees.own); s.own.tree == nil {
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
	srv.onChange(s.updateTrees)
	s.updateTrees() // applies changes since the tree was made
	return s, nil
}

// Refresh updates the files below /sys to the state of the devices. Refresh is for programs that open these files
// by relative paths. Opening a file by its absolute path updates that file. Callers must call Refresh after a
// change of a device's attributes, such as its ports. The Supervisor detects new and removed devices without
// Refresh. It may sleep.
func (s *Supervisor) Refresh() { s.updateTrees() }

// describeDevices makes the entries of the current devices.
func (s *Supervisor) describeDevices() treeEntries {
	devices := s.server.devices()
	for i := range devices {
		if s.cfg.PCI != nil {
			devices[i].pci = s.cfg.PCI(devices[i].ib.Name())
		}
	}
	return makeDeviceEntries(devices, s.cfg.CM != nil)
}

// HoldTrees delays updates of the virtual files until release is called. The time of an update is proportional to the
// number of all devices. A caller that changes many devices should hold the updates until the last change.
func (s *Supervisor) HoldTrees() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.treeHolds++
	return func() {
		s.mu.Lock()
		s.treeHolds--
		s.mu.Unlock()
		s.updateTrees()
	}
}

// updateTrees updates the trees to the current devices, unless updates are delayed.
func (s *Supervisor) updateTrees() {
	s.mu.Lock()
	skip := s.closed || s.treeHolds > 0
	s.mu.Unlock()
	if skip {
		return
	}
	err := s.trees.updateAll(treeChangeTimeout + time.Duration(len(s.server.devices()))*treeDeviceTimeout)
	s.shown.Lock()
	defer s.shown.Unlock()
	if err != nil && s.shown.err == nil && s.shown.asked {
		s.cfg.Log.Warn("programs do not see the current devices", "err", err)
	}
	s.shown.err = err
}

// CheckTreesCurrent returns an error if programs do not see the current state of the devices. The error wraps an errno,
// such as ENOSPC for a full /dev/shm. After an error, CheckTreesCurrent first tries to update the trees again. The
// Supervisor logs later errors. It may sleep.
func (s *Supervisor) CheckTreesCurrent() error {
	s.shown.Lock()
	s.shown.asked = true
	err := s.shown.err
	s.shown.Unlock()
	if err != nil {
		s.updateTrees()
		s.shown.Lock()
		err = s.shown.err
		s.shown.Unlock()
	}
	return s.explainFullDisk(err)
}

// explainFullDisk adds the remedy to the error of a tree on a full file system.
func (s *Supervisor) explainFullDisk(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w; %s is full (df %[2]s): %s", err, filepath.Dir(s.cfg.Dir), shm.EnlargeAdvice(s.cfg.Dir))
	}
	return err
}

// closeTimeout is the time for which Close waits for calls that are blocked on a program's memory.
const closeTimeout = 2 * time.Second

// Close ends all sessions. It closes open device files, and leaves running programs to their guardians. Close may
// sleep for a limited time. After some seconds it logs and abandons a session with a blocked call.
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
	timeout, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	late := timeout.Done()
	s.denyAllWrites()
	s.stopper.Close()
	for _, t := range sessions {
		t.direct.stop(s.stop, &t.tokens)
	}
	for _, t := range sessions {
		select {
		case <-t.done:
		case <-late:
			select {
			case <-t.done:
			default:
				t.log.Warn("session abandoned: one of its calls does not end", "args", t.info.Args)
			}
		}
	}
	s.closeFiles(late, func(*openFile) bool { return true })
	s.closeNetlinkSockets()
	s.notify.Close()
	s.reader.Wait()
	s.stop.Close()
	s.trees.close()
}

const (
	// inotifyEvent is the size of struct inotify_event without the name, which a watch on a file does not report.
	inotifyEvent = unix.SizeofInotifyEvent
	// inotifyPause is the time between two reads of events. Equal events in that time are merged.
	inotifyPause = time.Millisecond
)

// watchCloses ends a device file after the close of its last descriptor by close, exec, exit or kill.
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
				s.checkAllFiles()
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
			f.checkAfterClose()
		}
	}
}

// checkAllFiles checks each file as if one of its descriptors had been closed.
func (s *Supervisor) checkAllFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		f.checkAfterClose()
	}
}

// denyWritesTimeout is the time for which Close waits until native doorbells fail. It is less than closeTimeout, so a
// program that takes longer leaves time for the end of the other programs.
const denyWritesTimeout = closeTimeout / 4

// denyAllWrites makes all native doorbells fail, and waits for at most denyWritesTimeout.
func (s *Supervisor) denyAllWrites() {
	s.mu.Lock()
	var all sync.WaitGroup
	for _, f := range s.files {
		if f.native != nil {
			all.Go(f.denyWrites)
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
	case <-time.After(denyWritesTimeout):
	}
}

// closeFiles closes the open device files that meet the condition, and waits for their end. If late is not nil, the
// wait ends when late is closed.
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

func (s *Supervisor) openFileOf(i inode) *openFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[i]
}
