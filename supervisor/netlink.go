package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/contain"
	"verbena/internal/kept"
	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/rights"
	"verbena/nldev"
	"verbena/rdmacm/ucma"
	"verbena/uapi"
	"verbena/uapi/ucm"
	"verbena/uverbs"
)

// A program's NETLINK_RDMA socket is one end of a pair of AF_UNIX sockets of type SOCK_SEQPACKET, so sending,
// receiving and poll(2) are native. The service holds the other end of the pair. That end is bound to an abstract
// name of 12 bytes, the length of a netlink address. The name has the kernel's number, 0, in the position of
// nl_pid. libmnl and libnl check no other part of an answer's address. The filter traps socket(2). By the number of
// the descriptor, it also traps bind(2), getsockname(2) and setsockopt(2), which an AF_UNIX socket would refuse.
// The kernel reports the sender of each datagram (SCM_CREDENTIALS).

// netlinkAddrSize is the length of struct sockaddr_nl.
const netlinkAddrSize = 12

// netlinkSocket is a NETLINK_RDMA socket of a program.
type netlinkSocket struct {
	sup    *Supervisor
	end    *os.File
	user   *quota.User // user that opened the socket
	kept   *kept.UserObjects
	note   kept.FileNote // charge for the program's end
	opener netlinkOpener
	inode  inode // inode of the program's end
	portID uint32
	all    *netlinkUserState
}

// netlinkUserState is the state shared by a user's netlink sockets.
type netlinkUserState struct {
	//verbena:program the programs of one user; what managers add has memory of the service's own
	answering sync.Mutex // held while an answer is made; serialises answers

	// Under Supervisor.mu.
	sockets int
	unread  int // bytes of unread answers in the sockets
}

const (
	// maxNetlinkSockets limits the number of sockets of one user. Each socket uses a goroutine and
	// netlinkSendBuffer bytes of kernel memory.
	maxNetlinkSockets = 1024
	netlinkSendBuffer = 8 << 10
	// maxNetlinkUnread limits the bytes of unread answers of one user. Beyond maxNetlinkUnread, requests fail. The
	// last answer may be a large dump, so it may exceed the limit.
	maxNetlinkUnread = 1 << 20
)

// Links makes and removes devices for `rdma link add` and `rdma link delete` of managers' programs.
type Links interface {
	// AddLink makes a device on a network interface. AddLink returns EINVAL for a type other than rxe. It may
	// sleep.
	AddLink(name, linkType, netdev string) error
	// DeleteLink removes a device. It may sleep.
	DeleteLink(name string) error
}

// netlinkCalls answers the calls that open and name sockets, one at a time.
type netlinkCalls struct {
	caller *caller
	token  *tokenHolder
}

// openNetlink answers socket(2) for a NETLINK_RDMA socket.
func (nc *netlinkCalls) openNetlink() callResult {
	kind := uint32(nc.caller.n.args[1])
	t := nc.caller.session
	if t := kind &^ (unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK); t != unix.SOCK_RAW && t != unix.SOCK_DGRAM {
		return failWith(syscall.ESOCKTNOSUPPORT)
	}
	nc.token.beginBusy()
	th, err := nc.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	p, _, err := nc.caller.findOrOpenProcess(th)
	if err != nil {
		return failWith(err)
	}
	who, err := t.sup.principalOf(th)
	if err == nil {
		err = nc.caller.checkTrapped()
	}
	if err != nil {
		return failWith(nc.caller.preferErrCallerGone(err))
	}
	opener := netlinkOpener{who, th.id.uids.real}
	s, end, err := t.sup.newNetlinkSocket(p.user, opener, kind&unix.SOCK_NONBLOCK != 0, uint32(th.id.pid))
	if t.sup.awaitCloses(p.user, err) {
		s, end, err = t.sup.newNetlinkSocket(p.user, opener, kind&unix.SOCK_NONBLOCK != 0, uint32(th.id.pid))
	}
	if err != nil {
		t.log.Warn("open a netlink socket", "pid", th.id.pid, "name", th.id.name, "err", err)
		return failWith(err)
	}
	number, err := nc.caller.installCommandFile(th, p, end, 0, false, uint64(kind&unix.SOCK_CLOEXEC))
	unix.Close(end)
	go s.serve()
	if err != nil {
		return failWith(err) // the socket ends, because no process has its end
	}
	return callResult{val: int64(number)}
}

// descriptorsPerNetlinkSocket is the number of descriptors charged for a pair of sockets while a program has its end.
const descriptorsPerNetlinkSocket = 2

// newNetlinkSocket makes a socket and returns the program's end. The caller must close that end.
func (s *Supervisor) newNetlinkSocket(user *quota.User, opener netlinkOpener, nonblock bool,
	portID uint32) (n *netlinkSocket,
	end int, err error) {
	if err := user.Charge(quota.Descriptors, descriptorsPerNetlinkSocket); err != nil {
		return nil, -1, err
	}
	defer func() {
		if err != nil {
			user.Release(quota.Descriptors, descriptorsPerNetlinkSocket)
		}
	}()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a pair of sockets: %w", err)
	}
	var st unix.Stat_t
	if err := rights.RefuseDescriptors(ends[1]); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		unix.Close(ends[0])
		unix.Close(ends[1])
		return nil, -1, err
	}
	keep := s.cfg.Kept.ObjectsOf(user)
	note, err := keep.NoteFile(ends[0])
	err = errors.Join(err,
		bindAsKernel(ends[1]), unix.SetsockoptInt(ends[1], unix.SOL_SOCKET, unix.SO_SNDBUF, netlinkSendBuffer),
		unix.SetsockoptInt(ends[1], unix.SOL_SOCKET, unix.SO_PASSCRED, 1),
		unix.SetNonblock(ends[1], true), unix.SetNonblock(ends[0], nonblock), unix.Fstat(ends[0], &st))
	if err != nil {
		unix.Close(ends[0])
		unix.Close(ends[1])
		return nil, -1, err
	}
	n = &netlinkSocket{
		sup: s, end: os.NewFile(uintptr(ends[1]),
			"netlink"), user: user, kept: keep, note: note, opener: opener, inode: inode{st.Dev, st.Ino}, portID: portID,
	}
	s.mu.Lock()
	if s.closed {
		err = fmt.Errorf("the service is ending: %w", unix.ENODEV)
	} else {
		err = s.countNetlinkSocket(n)
	}
	s.mu.Unlock()
	if err != nil {
		n.end.Close()
		unix.Close(ends[0])
		return nil, -1, err
	}
	return n, ends[0], nil
}

// countNetlinkSocket counts a new socket.
//
//verbena:held mu
func (s *Supervisor) countNetlinkSocket(n *netlinkSocket) error {
	u := s.netlinkUsers[n.user]
	if u == nil {
		u = &netlinkUserState{}
		s.netlinkUsers[n.user] = u
	}
	if u.sockets >= maxNetlinkSockets {
		return fmt.Errorf("the user has %d netlink sockets: %w", u.sockets, syscall.EMFILE)
	}
	u.sockets++
	n.all = u
	s.netlinks[n.inode] = n
	return nil
}

func (s *Supervisor) uncountNetlinkSocket(n *netlinkSocket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.netlinks, n.inode)
	if n.all.sockets--; n.all.sockets == 0 {
		delete(s.netlinkUsers, n.user)
	}
}

// bindAsKernel binds a socket to a name with nl_pid 0.
func bindAsKernel(fd int) error {
	var name [netlinkAddrSize - 2]byte // '@' represents the zero byte of an abstract name
	for range 16 {
		r := rand.Uint64()
		name = [len(name)]byte{'@', byte(r)}
		binary.NativeEndian.PutUint32(name[6:], uint32(r>>8))
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: string(name[:])}); err != unix.EADDRINUSE {
			return err
		}
	}
	return unix.EADDRINUSE
}

// maxNetlinkRequest is the maximum size of a request. The kernel truncates longer requests.
const maxNetlinkRequest = 8 << 10

// netlinkBuffers is a pool of buffers for requests, of type *[maxNetlinkRequest]byte.
var netlinkBuffers = sync.Pool{New: func() any { return new([maxNetlinkRequest]byte) }}

// serve answers requests until the program has closed its end.
func (n *netlinkSocket) serve() {
	s := n.sup
	queue := s.cfg.Rights.QueueOf(n.user)
	defer func() {
		s.uncountNetlinkSocket(n)
		queue.DrainAndClose(n.end)
		n.kept.Keep(n.note, func() { n.user.Release(quota.Descriptors, descriptorsPerNetlinkSocket) })
	}()
	raw, err := n.end.SyscallConn()
	if err != nil {
		return
	}
	contain.RecoverPanic(func() {
		for n.answerNext(queue, raw) {
		}
	}, contain.LogPanic(s.cfg.Log, "panic in a netlink request: the socket is closed", "uid", n.user.ID().UID))
}

// answerNext receives a datagram and answers it. It returns false after the last datagram.
func (n *netlinkSocket) answerNext(queue *rights.Queue, raw syscall.RawConn) bool {
	if rights.AwaitMessage(raw) != nil {
		return false
	}
	buf := netlinkBuffers.Get().(*[maxNetlinkRequest]byte)
	defer netlinkBuffers.Put(buf)
	m, err := queue.Receive(raw, buf[:], 0)
	if err != nil || m.N == 0 && !m.Control { // an empty datagram has a sender
		return false
	}
	if f := n.sup.cfg.pause; f != nil {
		f("netlink", 0)
	}
	answers := n.answerDatagram(m.Sender, buf[:m.N])
	for i, b := range answers {
		werr := raw.Write(func(fd uintptr) bool {
			err = unix.Sendmsg(int(fd), b, nil, nil, unix.MSG_NOSIGNAL)
			return err != unix.EAGAIN
		})
		if answers[i] = nil; werr != nil || err != nil {
			for _, b := range answers[i+1:] {
				n.recordRead(len(b))
			}
			n.recordRead(len(b))
			return false
		}
		n.recordRead(len(b))
	}
	return true
}

// answerDatagram returns the answers to a datagram, and counts them as unread. A program may write another program's
// data to an inherited descriptor. A request therefore has only the rights that the opener of the socket also has.
// (netlink_ns_capable)
//
//verbena:parses
func (n *netlinkSocket) answerDatagram(sender *rights.Sender, request []byte) [][]byte {
	s := n.sup
	who := s.netlinkSourceFor(sender, n.opener)
	var admin nldev.Admin
	if s.cfg.Links != nil && who.manages {
		admin = s.cfg.Links
	}
	n.all.answering.Lock()
	defer n.all.answering.Unlock()
	s.mu.Lock()
	socket := nldev.Socket{PortID: n.portID}
	full := n.all.unread > maxNetlinkUnread
	s.mu.Unlock()
	var answers [][]byte
	if full {
		answers = socket.Refuse(request, syscall.ENOBUFS)
	} else {
		answers = socket.Answer(who, admin, request)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range answers {
		n.all.unread += len(b)
	}
	return answers
}

// recordRead records that the program has read some bytes.
func (n *netlinkSocket) recordRead(size int) {
	n.sup.mu.Lock()
	defer n.sup.mu.Unlock()
	n.all.unread -= size
}

// closeNetlinkSockets ends all sockets. Programs then read the end of the file.
func (s *Supervisor) closeNetlinkSockets() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.netlinks {
		n.end.Close()
	}
}

// netlinkSocketOf returns the socket of a descriptor number of the caller, or nil for other files.
func (nc *netlinkCalls) netlinkSocketOf(fd int32) *netlinkSocket {
	i, err := inodeOf(nc.caller.n.tid, fd)
	if err != nil {
		return nil
	}
	s := nc.caller.session.sup
	s.mu.Lock()
	n := s.netlinks[i]
	s.mu.Unlock()
	if n == nil || nc.caller.checkTrapped() != nil {
		return nil
	}
	return n
}

// answerNetlinkCall answers bind(2), getsockname(2) or setsockopt(2) on a descriptor with a command file's number.
func (nc *netlinkCalls) answerNetlinkCall(c call) callResult {
	n := nc.netlinkSocketOf(int32(nc.caller.n.args[0]))
	if n == nil {
		return callResult{fate: fateContinued}
	}
	nc.token.beginBusy()
	s := nc.caller.session.sup
	switch c {
	case callBind:
		var a [netlinkAddrSize]byte
		if nc.caller.n.args[2] < netlinkAddrSize {
			return failWith(syscall.EINVAL)
		}
		if got, err := nc.caller.readMemory(nc.caller.n.args[1], a[:]); err != nil || got < len(a) {
			return failWith(syscall.EFAULT)
		}
		if err := nc.caller.checkTrapped(); err != nil {
			return failWith(err)
		}
		if binary.NativeEndian.Uint16(a[:]) != unix.AF_NETLINK {
			return failWith(syscall.EINVAL)
		}
		if id := binary.NativeEndian.Uint32(a[4:]); id != 0 {
			s.mu.Lock()
			n.portID = id
			s.mu.Unlock()
		}
		return callResult{}
	case callGetsockname:
		var room [4]byte
		if got, err := nc.caller.readMemory(nc.caller.n.args[2], room[:]); err != nil || got < len(room) {
			return failWith(syscall.EFAULT)
		}
		size := int32(binary.NativeEndian.Uint32(room[:]))
		if size < 0 {
			return failWith(syscall.EINVAL)
		}
		var a [netlinkAddrSize]byte
		binary.NativeEndian.PutUint16(a[:], unix.AF_NETLINK)
		s.mu.Lock()
		binary.NativeEndian.PutUint32(a[4:], n.portID)
		s.mu.Unlock()
		if err := nc.caller.writeMemory(nc.caller.n.args[1], a[:min(int(size), len(a))]); err != nil {
			return failWith(err)
		}
		binary.NativeEndian.PutUint32(room[:], netlinkAddrSize)
		return failWith(nc.caller.writeMemory(nc.caller.n.args[2], room[:]))
	}
	if int32(nc.caller.n.args[1]) != unix.SOL_NETLINK {
		return callResult{fate: fateContinued}
	}
	return callResult{} // the options have no effect here
}

// netlinkOpener is the process that opened a socket.
type netlinkOpener struct {
	principal.Principal
	uid int // the real user ID, which the kernel reports for a sender
}

// netlinkSource provides the devices and objects that the sender of a request may see (nldev.Source). Both the
// sender and the opener of the socket must be allowed to see these devices and objects.
type netlinkSource struct {
	sup     *Supervisor
	account quota.ID
	owns    bool // the sender belongs to account
	manages bool
}

// netlinkSourceFor returns the netlinkSource for a sender, or nil for an unknown sender.
func (s *Supervisor) netlinkSourceFor(sender *rights.Sender, opener netlinkOpener) netlinkSource {
	n := netlinkSource{sup: s, account: opener.Account}
	if sender == nil {
		return n
	}
	n.owns = sender.UID == opener.uid && !opener.Anonymous
	if opener.Manager && sender.UID >= 0 {
		n.manages = s.isManagerSender(*sender)
	}
	return n
}

// isManagerSender reports whether the sender of a datagram manages the service. The kernel reports the sender's
// process ID and user ID. isManagerSender returns false for a sender that has ended.
func (s *Supervisor) isManagerSender(sender rights.Sender) bool {
	dir, err := openProcDir(sender.PID)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	who, err := s.cfg.Authority.PrincipalOf(dir, sender.UID, sender.UID)
	return err == nil && who.Manager
}

// maySee reports whether the sender and the opener may see the objects of a user, by the same rules as `verbena res
// show`.
func (s netlinkSource) maySee(id quota.ID) bool { return s.manages || s.owns && id == s.account }

func (s netlinkSource) ConnectionManager() (nldev.Chardev, bool) {
	if s.sup.cfg.CM == nil {
		return nldev.Chardev{}, false
	}
	return nldev.Chardev{Name: cmDevice, Major: miscMajor, Minor: cmMinor, ABI: ucm.ABIVersion}, true
}

func (s netlinkSource) Devices() (list []nldev.Device) {
	for _, d := range s.sup.server.devices() {
		a, err := d.ib.QueryDevice()
		if err != nil {
			continue
		}
		n := nldev.Device{
			Index: uint32(d.minor), Name: d.ib.Name(), NodeType: uint8(nodeTypeOf(&a)), NameByUser: true,
			Protocol: protocolOf(&a), NodeGUID: a.NodeGUID,
			FWVer:        fmt.Sprintf("%d.%d.%d", a.FWVer>>32, a.FWVer>>16&0xffff, a.FWVer&0xffff),
			SysImageGUID: a.SysImageGUID, CapFlags: uint64(a.DeviceCapFlags), DriverID: uint32(d.driverID),
			Uverbs: nldev.Chardev{Name: d.name, Major: verbsMajor, Minor: uint32(baseMinor + d.minor),
				ABI: uint64(d.driverABI)},
			Resources: s.visibleResources(d.ib.Name()),
		}
		if c := d.counters; c != nil {
			n.Counters = func(uint32) map[string]uint64 { return c.Stats() }
		}
		for port := 1; port <= a.PhysPorts; port++ {
			p, err := d.ib.QueryPort(port)
			if err != nil {
				break
			}
			n.Ports = append(n.Ports, nldev.Port{
				State: uint8(p.State), PhysState: p.PhysState, NetdevIndex: ifIndexOf(&d, port), NetdevName: p.Netdev,
			})
		}
		list = append(list, n)
	}
	return list
}

// ifIndexOf returns the index of a port's network interface, taken from the first entry of the port's GID table.
func ifIndexOf(d *device, port int) uint32 {
	g, err := d.ib.QueryGID(port, 0)
	if err != nil {
		return 0
	}
	return uint32(g.IfIndex)
}

// objectHandleBits is the number of bits of an object's handle in an ID. The other bits identify the context.
const objectHandleBits = 20

// visibleIDs returns the connection manager's IDs on a device that the sender may see.
func (s netlinkSource) visibleIDs(all []ucma.IDInfo, dev string) (list []ucma.IDInfo) {
	for _, i := range all {
		if s.maySee(i.Owner) && i.View.Device != nil && i.View.Device.Name() == dev {
			list = append(list, i)
		}
	}
	return list
}

// visibleResources lists the objects on a device that the sender may see. A user sees the objects of the user's own
// programs, and a manager of the service sees the objects of all programs.
func (s netlinkSource) visibleResources(dev string) nldev.Resources {
	each := func(f func(id func(handle uint32) uint32, c *uverbs.ContextInfo, o nldev.Owner)) {
		for i, c := range s.sup.server.resources() {
			if c.Device != dev || c.Zombie || !s.maySee(c.Owner) {
				continue
			}
			id := func(handle uint32) uint32 { return uint32(i+1)<<objectHandleBits | handle&(1<<objectHandleBits-1) }
			f(id, &c, nldev.Owner{PID: uint32(c.PID)})
		}
	}
	return nldev.Resources{
		Contexts: func() (l []nldev.Context) {
			each(func(id func(uint32) uint32, _ *uverbs.ContextInfo, o nldev.Owner) {
				l = append(l, nldev.Context{ID: id(0), Owner: o})
			})
			return l
		},
		PDs: func() (l []nldev.PD) {
			each(func(id func(uint32) uint32, c *uverbs.ContextInfo, o nldev.Owner) {
				for _, p := range c.PDs {
					l = append(l, nldev.PD{ID: id(p.Handle), Context: id(0), UseCount: uint64(p.Uses), Owner: o})
				}
			})
			return l
		},
		CQs: func() (l []nldev.CQ) {
			each(func(id func(uint32) uint32, c *uverbs.ContextInfo, o nldev.Owner) {
				for _, q := range c.CQs {
					l = append(l, nldev.CQ{
						ID: id(q.Handle), Context: id(0), CQE: uint32(q.Entries), UseCount: uint64(q.Uses), Owner: o,
					})
				}
			})
			return l
		},
		QPs: func() (l []nldev.QP) {
			each(func(id func(uint32) uint32, c *uverbs.ContextInfo, o nldev.Owner) {
				for _, q := range c.QPs {
					n := nldev.QP{
						Num: q.Num, Port: 1, Type: uint8(q.Type), State: uint8(
							q.State), RemoteNum: q.DestNum, RQPSN: q.RQPSN, SQPSN: q.SQPSN,
						Owner: o,
					}
					if q.Type != uapi.QPTXRCTgt {
						n.PD = id(q.PD)
					}
					l = append(l, n)
				}
			})
			return l
		},
		MRs: func() (l []nldev.MR) {
			each(func(id func(uint32) uint32, c *uverbs.ContextInfo, o nldev.Owner) {
				for _, m := range c.MRs {
					l = append(l, nldev.MR{ID: id(m.Handle), PD: id(m.PD), Length: m.Length, LKey: m.LKey, RKey: m.RKey, Owner: o})
				}
			})
			return l
		},
		CMIDs: func() (l []nldev.CMID) {
			if s.sup.cfg.CM == nil {
				return nil
			}
			for _, i := range s.visibleIDs(s.sup.cfg.CM.IDs(), dev) {
				l = append(l, nldev.CMID{
					ID: i.ID, Port: uint32(i.View.Port), QPNum: i.View.QPN, QPType: uint8(i.Type), PS: uint32(
						i.Space), State: i.View.State,
					Src: i.View.Src, Dst: i.View.Dst, Owner: nldev.Owner{PID: uint32(i.PID)},
				})
			}
			return l
		},
		SRQs: func() (l []nldev.SRQ) {
			each(func(id func(uint32) uint32, c *uverbs.ContextInfo, o nldev.Owner) {
				for _, q := range c.SRQs {
					n := nldev.SRQ{ID: id(q.Handle), PD: id(q.PD), Owner: o}
					if q.XRC {
						n.Type, n.CQ = uint8(uapi.SRQTXRC), id(q.CQ)
					}
					for _, p := range c.QPs {
						if p.SRQ == q.Handle {
							n.QPs = append(n.QPs, p.Num)
						}
					}
					l = append(l, n)
				}
			})
			return l
		},
	}
}
