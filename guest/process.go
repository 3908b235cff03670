package guest

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/umem"
)

// identity is who a thread is, as /proc tells (proc_pid_status(5)).
type identity struct {
	pid            int // of the process, its thread group
	name           string
	uids, gids     ids
	groups         []int
	fileCapability bool // CAP_DAC_OVERRIDE
}

// ids are the real, effective, saved and file system id.
type ids struct{ real, effective, saved, fs int }

func identify(tid int) (*identity, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return nil, fmt.Errorf("look up process %d: %w", tid, err)
	}
	return parseStatus(text)
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
		}
		if err != nil {
			return nil, fmt.Errorf("cannot make sense of process status %q: %w", line, err)
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
	// Mode is the permission bits; 0 stands for 0666, as udev's rules have it.
	Mode uint32
}

// Access rights, as in access(2).
const (
	mayExecute = unix.X_OK
	mayWrite   = unix.W_OK
	mayRead    = unix.R_OK
)

// allows reports whether a process with these ids has the rights on the file. (inode_permission)
func (n Node) allows(id *identity, uid, gid int, rights uint32) bool {
	mode := n.Mode
	switch {
	case id.fileCapability:
		return rights&mayExecute == 0 || mode&0o111 != 0
	case uid == n.UID:
		mode >>= 6
	case gid == n.GID, slices.Contains(id.groups, n.GID):
		mode >>= 3
	}
	return rights&^mode == 0
}

// process is a process that issues commands, or opened a device file. (uverbs.Process)
type process struct {
	id      *identity
	space   *umem.Process
	account *umem.Account
	user    *quota.User // whom device files are charged to; nil for nobody
}

// newProcess opens the process's memory; its call is trapped, so that it exists.
func (t *Session) newProcess(id *identity) (*process, error) {
	space, err := t.openSpace(id.pid)
	if err != nil {
		return nil, err
	}
	return &process{id: id, space: space, account: umem.NewProcessAccount(id.pid)}, nil
}

func (p *process) User() *quota.User      { return p.user }
func (p *process) PID() int               { return p.id.pid }
func (p *process) Name() string           { return p.id.name }
func (p *process) UID() int               { return p.id.uids.effective }
func (p *process) Space() umem.Space      { return p.space }
func (p *process) Account() *umem.Account { return p.account }

// exited reports whether the process has gone, so that its number may be another's.
func (p *process) exited() bool {
	select {
	case <-p.space.Exited():
		return true
	default:
		return false
	}
}
