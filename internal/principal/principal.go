// Package principal decides which user of a service is charged for a process, and whether the process may manage the
// service.
//
// The user ID alone does not decide either question. With subordinate IDs (/etc/subuid) one user has many IDs. A
// process in a user namespace is charged to the owner of the outermost namespace other than the service's own
// namespace. A process with a subordinate ID outside of such a namespace is charged to the owner of the ID. In a
// container without a user namespace, which is the usual kind, uid 0 has no capabilities. In such a container uid 0
// is an ordinary user, and the same ID in another container is another user. The process ID namespace identifies a
// container, if the namespace was made with privilege in the service's own user namespace. No user can make such a
// namespace to become another user.
//
// A process manages the service if its effective user ID was configured as a manager. It also manages the service
// if it is root or the service's own user, and could control the service in other ways. A process has this control
// in three cases: with CAP_SYS_ADMIN in the service's user namespace; with CAP_NET_ADMIN there and in the service's
// network namespace; or outside of any container with at least the capabilities that the service was started with.
//
// Limit: the kernel may deny the service access to a process's namespaces, without CAP_SYS_PTRACE and for a process
// of another user. In that case the process is charged by its user ID. The capabilities of that process count if
// its map of user IDs and its process IDs look like those of the service's own namespaces.
package principal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"verbena/internal/privilege"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/internal/reopen"
)

// Principal identifies the user of a process to a service.
type Principal struct {
	Account quota.ID
	Manager bool
	// Anonymous is set if the user ID represents several users (user_namespaces(7), "Unmapped user and group IDs").
	// An anonymous user owns no objects.
	Anonymous bool
	// Caps holds the effective capabilities of the process that count in the service's user namespace.
	Caps uint64
}

// HasCapability reports whether the process has a capability, such as unix.CAP_NET_RAW.
func (p Principal) HasCapability(c int) bool { return p.Caps&(1<<c) != 0 }

// OwnsAccount reports whether the principal owns the objects charged to an account.
func (p Principal) OwnsAccount(id quota.ID) bool { return id == p.Account && !p.Anonymous }

// SeesAccount reports whether the principal may see the objects charged to an account.
func (p Principal) SeesAccount(id quota.ID) bool { return p.Manager || p.OwnsAccount(id) }

// Authority makes these decisions for one service. Authority is safe for concurrent use.
type Authority struct {
	uid      int
	managers []int
	overflow int // -1 without an overflow ID
	caps     uint64
	own      [numNamespaces]fileID
	ids      *subordinateIDs
}

// fileID identifies a file, such as a namespace.
type fileID struct{ dev, ino uint64 }

type namespaceKind uint8

const (
	userNS namespaceKind = iota
	pidNS
	netNS
	numNamespaces
)

var namespacePaths = [numNamespaces]string{userNS: "ns/user", pidNS: "ns/pid", netNS: "ns/net"}

// New returns the Authority of this process. New must be called before the process drops capabilities. Processes
// with a user ID in managers manage the service. overflow is the user ID that represents several users, or -1.
func New(managers []int, overflow int) (*Authority, error) {
	a := &Authority{uid: os.Geteuid(), managers: managers, overflow: overflow,
		ids: newSubordinateIDs("/etc/subuid", "/etc/passwd")}
	sets, err := privilege.ReadCapabilities("self")
	if err != nil {
		return nil, err
	}
	a.caps = sets.Permitted
	for n, path := range namespacePaths {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/"+path, &st); err != nil {
			return nil, fmt.Errorf("look up the service's own namespace: %w",
				&os.PathError{Op: "stat", Path: "/proc/self/" + path, Err: err})
		}
		a.own[n] = fileID{st.Dev, st.Ino}
	}
	return a, nil
}

// PrincipalOf returns the principal of a process by its directory in /proc, which may be a descriptor opened with
// O_PATH. The caller provides the user IDs: the ID of a connection's opener, or the real and the effective ID of a
// thread. The directory stays bound to the process. If the process has ended, PrincipalOf returns an error, because the
// container is then unknown.
func (a *Authority) PrincipalOf(proc, real, effective int) (p Principal, err error) {
	p = a.InaccessiblePrincipal(real)
	if effective != real {
		p.Manager = a.isManager(effective)
	}
	if p.Account, err = a.accountOf(proc, real); err != nil {
		return Principal{}, fmt.Errorf("look up the namespaces of a process: %w", err)
	}
	if p.Caps, err = a.effectiveCapabilities(proc, effective); err != nil {
		return Principal{}, err
	}
	if !p.Manager && (effective == 0 || effective == a.uid) && effective != a.overflow {
		p.Manager = p.HasCapability(unix.CAP_SYS_ADMIN) ||
			p.HasCapability(unix.CAP_NET_ADMIN) && a.inOwnNamespace(proc, netNS) ||
			effective == a.uid && p.Account.Container == 0 && a.caps&^p.Caps == 0
	}
	return p, nil
}

// PIDNamespace returns the inode of a process's process ID namespace, or 0 for the service's own namespace. Another
// process may have reused the number. The error wraps ENOENT if the process has ended.
func (a *Authority) PIDNamespace(pid int) (uint64, error) {
	var st unix.Stat_t
	path := "/proc/" + strconv.Itoa(pid) + "/" + namespacePaths[pidNS]
	err := unix.Stat(path, &st)
	switch {
	case err == unix.EACCES, err == nil && (fileID{st.Dev, st.Ino}) == a.own[pidNS]:
		return 0, nil
	case err != nil:
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// InaccessiblePrincipal returns the principal of a user whose process is inaccessible.
func (a *Authority) InaccessiblePrincipal(uid int) Principal {
	return Principal{Account: quota.ID{UID: a.ids.ownerOf(uid)}, Manager: a.isManager(uid), Anonymous: uid == a.overflow}
}

func (a *Authority) isManager(uid int) bool {
	return uid != a.overflow && slices.Contains(a.managers, uid)
}

// effectiveCapabilities returns the effective capabilities of a process that count in the service's user namespace.
// After a process has executed a set-uid program, or a program with file capabilities, it has no capabilities for the
// user who opened a connection before, because its directory then belongs to root. (See proc(5), "/proc/pid".) An error
// means a lack of descriptors, and the process may have capabilities.
func (a *Authority) effectiveCapabilities(proc, uid int) (uint64, error) {
	var st unix.Stat_t
	if unix.Fstat(proc, &st) != nil || int(st.Uid) != uid {
		return 0, nil
	}
	sets, err := privilege.ReadCapabilitiesAt(proc)
	if err == nil && !a.inOwnNamespace(proc, userNS) {
		var same bool
		if same, err = a.sharesNamespaces(proc); !same {
			sets.Effective = 0
		}
	}
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return 0, fmt.Errorf("look up the capabilities of a process: %w", err)
	case err != nil:
		return 0, nil
	}
	return sets.Effective, nil
}

// inOwnNamespace reports whether a process is in the service's own namespace of a kind.
func (a *Authority) inOwnNamespace(proc int, n namespaceKind) bool {
	var st unix.Stat_t
	return unix.Fstatat(proc, namespacePaths[n], &st, 0) == nil && (fileID{st.Dev, st.Ino}) == a.own[n]
}

// sharesNamespaces reports whether a process with inaccessible namespaces seems to be in the same user and process ID
// namespaces. Such a process has the same map of user IDs, and no process ID in a nested namespace. Root can
// therefore manage the service of an ordinary user.
func (a *Authority) sharesNamespaces(proc int) (bool, error) {
	var st unix.Stat_t
	if unix.Fstatat(proc, namespacePaths[userNS], &st, 0) != unix.EACCES {
		return false, nil
	}
	theirs, err := privilege.ReadProcFile(proc, "uid_map")
	own, oerr := procfile.ReadNoFollow("/proc/self/uid_map")
	status, serr := privilege.ReadProcFile(proc, "status")
	if err := cmp.Or(err, oerr, serr); err != nil || !bytes.Equal(theirs, own) {
		return false, err
	}
	for line := range bytes.Lines(status) {
		if numbers, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			return len(bytes.Fields(numbers)) == 1, nil
		}
	}
	return false, nil
}

// maxNamespaceDepth exceeds the maximum nesting of namespaces. (MAX_PID_NS_LEVEL, 32)
const maxNamespaceDepth = 40

// accountOf returns the account of a process with a user ID.
func (a *Authority) accountOf(proc, uid int) (id quota.ID, err error) {
	id = quota.ID{UID: uid}
	if id.Container, err = a.containerOf(proc); err != nil {
		return id, err
	}
	if id.Container == 0 {
		defer func() { id.UID = a.ids.ownerOf(id.UID) }()
	}
	outer, inode, err := a.outermostUserNS(proc)
	if outer < 0 || err != nil {
		return id, err
	}
	defer unix.Close(outer)
	owner, err := unix.IoctlGetUint32(outer, unix.NS_GET_OWNER_UID)
	if err != nil {
		return id, os.NewSyscallError("NS_GET_OWNER_UID", err)
	}
	id.UID = int(owner)
	if id.Container == 0 && owner == 0 {
		id.Container = inode // root has made a container with a user namespace
	}
	return id, nil
}

// outermostUserNS returns the outermost user namespace of a process below the service's own namespace, as a
// descriptor and an inode. The descriptor is -1 if there is none, or if the namespaces are inaccessible.
func (a *Authority) outermostUserNS(proc int) (fd int, inode uint64, err error) {
	fd, f, err := openNS(proc, userNS)
	if err != nil || f == a.own[userNS] {
		closeNS(fd)
		return -1, 0, ignoreAccessDenied(err)
	}
	for range maxNamespaceDepth {
		parent, pf, err := openRelatedNS(fd, unix.NS_GET_PARENT)
		if err != nil { // the namespace is not below the service's own namespace
			break
		}
		if pf == a.own[userNS] {
			closeNS(parent)
			return fd, f.ino, nil
		}
		closeNS(fd)
		fd, f = parent, pf
	}
	closeNS(fd)
	return -1, 0, nil
}

// ignoreAccessDenied returns err unless it means that the kernel denies access to another process's namespaces.
func ignoreAccessDenied(err error) error {
	if errors.Is(err, unix.EACCES) {
		return nil
	}
	return err
}

// containerOf returns the inode of the outermost process ID namespace of a process that is not the service's own and
// belongs to the service's user namespace. It returns 0 if there is none, or if the namespaces are inaccessible.
func (a *Authority) containerOf(proc int) (inode uint64, err error) {
	fd, f, err := openNS(proc, pidNS)
	if err != nil {
		return 0, ignoreAccessDenied(err)
	}
	for range maxNamespaceDepth {
		if err != nil || f == a.own[pidNS] {
			break
		}
		if owner, of, oerr := openRelatedNS(fd, unix.NS_GET_USERNS); oerr == nil {
			if of == a.own[userNS] {
				inode = f.ino
			}
			closeNS(owner)
		}
		var parent int
		parent, f, err = openRelatedNS(fd, unix.NS_GET_PARENT)
		closeNS(fd)
		fd = parent
	}
	closeNS(fd)
	return inode, nil
}

// openNS opens a namespace of a process. The link always leads to a file of the kernel.
func openNS(proc int, n namespaceKind) (int, fileID, error) {
	fd, err := reopen.OpenLinkTarget(proc, namespacePaths[n], unix.O_RDONLY)
	if err != nil {
		return -1, fileID{}, err
	}
	return statOpenFile(fd)
}

// openRelatedNS opens the namespace with a given relation to a namespace. (ioctl_ns(2))
func openRelatedNS(fd int, request uint) (int, fileID, error) {
	r, err := unix.IoctlRetInt(fd, request)
	if err != nil {
		return -1, fileID{}, err
	}
	unix.CloseOnExec(r)
	return statOpenFile(r)
}

func statOpenFile(fd int) (int, fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, fileID{}, err
	}
	return fd, fileID{st.Dev, st.Ino}, nil
}

func closeNS(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}
