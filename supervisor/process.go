package supervisor

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/umem"
)

// identity is the identity of a thread as read from /proc (proc_pid_status(5)).
type identity struct {
	pid            int // ID of the process (thread group)
	name           string
	uids, gids     idSet
	groups         []int
	fileCapability bool // the thread has CAP_DAC_OVERRIDE in this process's user namespace
	bindCapability bool // the thread has CAP_NET_BIND_SERVICE in this process's user namespace
	rawCapability  bool // the thread has CAP_NET_RAW in this process's user namespace
}

// idSet holds the real, effective, saved and file system ID.
type idSet struct{ real, effective, saved, fs int }

// readIdentity reads the identity of a thread by its ID. The caller must ensure that the ID still belongs to the
// thread.
func readIdentity(tid int) (*identity, error) {
	dir, err := openProcDir(tid)
	if err != nil {
		return nil, fmt.Errorf("look up process %d: %w", tid, err)
	}
	defer unix.Close(dir)
	id, err := readIdentityAt(dir)
	if err != nil {
		return nil, fmt.Errorf("look up process %d: %w", tid, err)
	}
	return id, nil
}

func parseStatus(text []byte) (*identity, error) {
	id := &identity{}
	for line := range bytes.Lines(text) {
		key, rest, _ := strings.Cut(string(line), ":")
		value := strings.Fields(rest)
		var err error
		switch key {
		case "Name":
			id.name = strings.TrimSuffix(strings.TrimPrefix(rest, "\t"), "\n")
		case "Tgid":
			err = parseInts(value, &id.pid)
		case "Uid":
			err = parseInts(value, &id.uids.real, &id.uids.effective, &id.uids.saved, &id.uids.fs)
		case "Gid":
			err = parseInts(value, &id.gids.real, &id.gids.effective, &id.gids.saved, &id.gids.fs)
		case "Groups":
			id.groups = make([]int, len(value))
			for i := range value {
				err = parseInts(value[i:], &id.groups[i])
			}
		case "CapEff":
			var caps uint64
			if len(value) == 1 {
				caps, err = strconv.ParseUint(value[0], 16, 64)
			}
			id.fileCapability = caps&(1<<unix.CAP_DAC_OVERRIDE) != 0
			id.rawCapability = caps&(1<<unix.CAP_NET_RAW) != 0
			id.bindCapability = caps&(1<<unix.CAP_NET_BIND_SERVICE) != 0
		}
		if err != nil {
			return nil, fmt.Errorf("malformed process status %q: %w", line, err)
		}
	}
	if id.pid == 0 {
		return nil, fmt.Errorf("process status has no Tgid: %w", unix.ESRCH)
	}
	return id, nil
}

func parseInts(words []string, into ...*int) error {
	if len(words) < len(into) {
		return unix.EINVAL
	}
	for i, p := range into {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			return err
		}
		*p = n
	}
	return nil
}

// Node is the owner and the permissions of the device files.
type Node struct {
	UID, GID int
	// Mode holds the permission bits; 0 means 0666, the mode in udev's rules.
	Mode uint32
}

// The following constants are the access rights, as in access(2).
const (
	mayExecute = unix.X_OK
	mayWrite   = unix.W_OK
	mayRead    = unix.R_OK
)

// allows reports whether a process with these IDs has the rights on the file. (inode_permission)
func (n Node) allows(id *identity, uid, gid int, rights uint32) bool {
	mode := n.Mode
	switch {
	case id.fileCapability:
		return rights&mayExecute == 0 || mode&0o111 != 0
	case uid == n.UID && !isOverflow(uid):
		mode >>= 6
	case gid == n.GID, slices.Contains(id.groups, n.GID):
		mode >>= 3
	}
	return rights&^mode == 0
}

// overflowUID returns the user ID that represents all users without a mapping in this user namespace, or -1 if all
// users are mapped. (user_namespaces(7), "Unmapped user and group IDs")
var overflowUID = sync.OnceValue(func() int {
	m, err := procfile.ReadNoFollow("/proc/self/uid_map")
	if err != nil || slices.Equal(strings.Fields(string(m)), []string{"0", "0", "4294967295"}) {
		return -1
	}
	b, err := procfile.ReadNoFollow("/proc/sys/kernel/overflowuid")
	if err != nil {
		return 65534
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 65534
	}
	return n
})

// isOverflow reports whether a user ID may represent several users.
func isOverflow(uid int) bool { return uid == overflowUID() }

// opener is a process that opens a device file. (uverbs.Process)
type opener struct {
	*process
	session         *Session
	opened          *umem.Process // address space that opened the file; nil if unknown
	execsBefore     uint32        // process.execs at that time
	id              *identity
	user            *quota.User
	nativeDoorbells bool
}

func (o *opener) PID() int               { return o.id.pid }
func (o *opener) Name() string           { return o.id.name }
func (o *opener) UID() int               { return o.id.uids.effective }
func (o *opener) Account() *umem.Account { return o.acct }

// IsAlive reports whether the process exists. It may not sleep.
func (o *opener) IsAlive() bool { return o.isAlive() }

// MemoryEnded reports whether an access found the end of the address space that opened the file, and whether an
// execve(2) ended it. A process that is being killed loses its address space before IsAlive reports its end. It may
// not sleep.
func (o *opener) MemoryEnded() (ended, executed bool) {
	return o.opened != nil && o.opened.FoundGone(), o.execs.Load() != o.execsBefore
}

// SessionName returns the name of the session, as in Session.Name.
func (o *opener) SessionName() string { return o.session.name }

// WeakConfig implements weak.User. The name of a device has the name of the process, and the number of the device among
// those of the processes with this name. Each device has another seed, which depends on its name.
func (o *opener) WeakConfig() *weak.Config {
	c := o.session.info.Weak
	if c == nil {
		return nil
	}
	own := *c
	own.Device = o.session.weakDevices.next(o.id.name)
	h := fnv.New64a()
	h.Write([]byte(own.Device))
	own.Seed += h.Sum64() << 32
	return &own
}

// deviceNames assigns names to the weak devices of a session.
type deviceNames struct {
	mu    sync.Mutex
	opens map[string]int // by the name of the process
}

// maxDeviceNames limits the number of names that are counted. A process can change its name.
const maxDeviceNames = 256

// next returns the name of the next device of a process with a name.
func (n *deviceNames) next(process string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opens == nil {
		n.opens = map[string]int{}
	}
	if n.opens[process] == 0 && len(n.opens) >= maxDeviceNames {
		process = "other"
	}
	n.opens[process]++
	return weak.DeviceName(fmt.Sprintf("%s/%d", process, n.opens[process]))
}

// CheckConfig implements uverbs.Checked.
func (o *opener) CheckConfig() *check.ProgramConfig {
	info := &o.session.info
	if info.Checks == 0 {
		return nil
	}
	return &check.ProgramConfig{Rules: info.Checks, Group: &o.session.checked, PID: o.id.pid,
		Report: func(v check.Violation) { info.Violation(o.id.pid, o.id.name, v) }}
}

// User returns the user charged for objects. For a set-uid program, the charged user is the real user.
func (o *opener) User() *quota.User { return o.user }

// canAccessOthers reports whether this process may access the memory of other users' processes.
var canAccessOthers = sync.OnceValue(func() bool {
	status, err := procfile.ReadNoFollow("/proc/self/status")
	if err != nil || os.Geteuid() == 0 {
		return true
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("CapEff:")); ok {
			caps, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 16, 64)
			return err != nil || caps&(1<<unix.CAP_SYS_PTRACE) != 0
		}
	}
	return true
})
