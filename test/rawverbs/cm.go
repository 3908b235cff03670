package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/uapi"
	"verbena/uapi/ucm"
)

// cmFile is an open rdma_cm file.
type cmFile struct {
	fd  int
	mem []byte // a command, and the response in the next page
}

func openCM() (*cmFile, error) {
	fd, err := syscall.Open("/dev/infiniband/rdma_cm", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open rdma_cm: %w", err)
	}
	mem, err := syscall.Mmap(-1, 0, 8192, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	return &cmFile{fd, mem}, err
}

func (f *cmFile) responseAddr() uint64 { return addressOf(f.mem[4096:]) }

// encodeCommand encodes a command into memory, and returns it.
func encodeCommand[C any](at []byte, cmd ucm.Command, v C, out int) []byte {
	b := append(uapi.AppendTo(nil, &ucm.Hdr{Cmd: cmd, In: uint16(uapi.SizeOf[C]()), Out: uint16(out)}),
		uapi.AppendTo(nil, &v)...)
	return at[:copy(at, b)]
}

func issueCMCommand[C any](f *cmFile, cmd ucm.Command, v C) error {
	if _, err := syscall.Write(f.fd, encodeCommand(f.mem, cmd, v, 4096)); err != nil {
		return fmt.Errorf("%v: %w", cmd, err)
	}
	return nil
}

func decodeResponse[R any](f *cmFile) R {
	v, _ := uapi.Decode[R](f.mem[4096:])
	return v
}

const (
	spaceTCP = 0x0106
	spaceUDP = 0x0111
)

func (f *cmFile) createID(space uint16, uid uint64) (uint32, error) {
	err := issueCMCommand(f, ucm.CmdCreateID, ucm.CreateID{UID: uid, Response: f.responseAddr(), PS: space,
		QPType: uint8(uapi.QPTRC)})
	return decodeResponse[ucm.CreateIDResp](f).ID, err
}

func (f *cmFile) destroyID(id uint32) error {
	return issueCMCommand(f, ucm.CmdDestroyID, ucm.DestroyID{Response: f.responseAddr(), ID: id})
}

func sockaddr(a netip.AddrPort) (s ucm.Sockaddr) {
	binary.NativeEndian.PutUint16(s[:], syscall.AF_INET)
	binary.BigEndian.PutUint16(s[2:], a.Port())
	v := a.Addr().As4()
	copy(s[4:], v[:])
	return s
}

const sizeofSockaddrInet = 16

func (f *cmFile) bindID(id uint32, a netip.AddrPort) error {
	return issueCMCommand(f, ucm.CmdBind, ucm.Bind{ID: id, AddrSize: sizeofSockaddrInet, Addr: sockaddr(a)})
}

func (f *cmFile) listenID(id uint32, a netip.AddrPort) error {
	if err := f.bindID(id, a); err != nil {
		return err
	}
	return issueCMCommand(f, ucm.CmdListen, ucm.Listen{ID: id})
}

func (f *cmFile) resolveAddr(id uint32, a netip.AddrPort) error {
	return issueCMCommand(f, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: id, TimeoutMs: 2000, DstSize: sizeofSockaddrInet,
		DstAddr: sockaddr(a)})
}

// waitEvent waits for an event.
func (f *cmFile) waitEvent() (ucm.EventResp, error) {
	err := issueCMCommand(f, ucm.CmdGetEvent, ucm.GetEvent{Response: f.responseAddr()})
	return decodeResponse[ucm.EventResp](f), err
}

// expectEvent waits for an event of a type.
func (f *cmFile) expectEvent(typ uint32) (ucm.EventResp, error) {
	e, err := f.waitEvent()
	if err == nil && e.Event != typ {
		err = fmt.Errorf("event %d of ID %d, status %d, want %d", e.Event, e.ID, int32(e.Status), typ)
	}
	return e, err
}

// The following constants are events (enum rdma_cm_event_type).
const (
	addrResolved   = 0
	routeResolved  = 2
	connectRequest = 4
	connectAnswer  = 5
	established    = 9
	disconnected   = 10
)

func connParam(qpn uint32) ucm.ConnParam {
	return ucm.ConnParam{QPNum: qpn, ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7, Valid: 1}
}

// newResolvedID returns an ID with a resolved route.
func (f *cmFile) newResolvedID(a netip.AddrPort) (uint32, error) {
	id, err := f.createID(spaceTCP, 1)
	if err == nil {
		err = f.resolveAddr(id, a)
	}
	if err == nil {
		_, err = f.expectEvent(addrResolved)
	}
	if err == nil {
		err = issueCMCommand(f, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: id, TimeoutMs: 2000})
	}
	if err == nil {
		_, err = f.expectEvent(routeResolved)
	}
	return id, err
}

// cmPair is a program that connects to itself.
type cmPair struct {
	*loopbackPair
	active, passive *cmFile
	addr            netip.AddrPort
	ids             [2]uint32
}

// newCMPair listens on a port of the device's address.
func newCMPair(port string) (*cmPair, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	c := &cmPair{}
	if c.loopbackPair, err = newLoopbackPair(); err != nil {
		return nil, err
	}
	c.addr = netip.AddrPortFrom(netip.AddrFrom16(c.gid).Unmap(), uint16(n))
	if c.active, err = openCM(); err != nil {
		return nil, err
	}
	if c.passive, err = openCM(); err != nil {
		return nil, err
	}
	l, err := c.passive.createID(spaceTCP, 1)
	if err == nil {
		err = c.passive.listenID(l, c.addr)
	}
	return c, err
}

// connect connects the two IDs for the connection manager. connect does not change the states of the queue pairs.
func (c *cmPair) connect() error {
	id, err := c.active.newResolvedID(c.addr)
	if err != nil {
		return err
	}
	if err := issueCMCommand(c.active, ucm.CmdConnect, ucm.Connect{ConnParam: connParam(c.qps[0].QPN),
		ID: id}); err != nil {
		return err
	}
	e, err := c.passive.expectEvent(connectRequest)
	if err == nil {
		err = issueCMCommand(c.passive, ucm.CmdAccept, ucm.Accept{UID: 2, ConnParam: connParam(c.qps[1].QPN), ID: e.ID})
	}
	if err == nil {
		_, err = c.active.expectEvent(connectAnswer)
	}
	if err == nil {
		err = issueCMCommand(c.active, ucm.CmdAccept, ucm.Accept{UID: 1, ID: id})
	}
	if err == nil {
		_, err = c.passive.expectEvent(established)
	}
	c.ids = [2]uint32{id, e.ID}
	return err
}

func (c *cmPair) disconnect() error {
	err := issueCMCommand(c.active, ucm.CmdDisconnect, ucm.Disconnect{ID: c.ids[0]})
	if err == nil {
		_, err = c.passive.expectEvent(disconnected)
	}
	if err == nil {
		err = issueCMCommand(c.passive, ucm.CmdDisconnect, ucm.Disconnect{ID: c.ids[1]})
	}
	if err == nil {
		_, err = c.active.expectEvent(disconnected)
	}
	if err == nil {
		err = c.active.destroyID(c.ids[0])
	}
	if err == nil {
		err = c.passive.destroyID(c.ids[1])
	}
	return err
}

// cmReconnect connects and disconnects for each line of input, and prints the time in milliseconds.
func cmReconnect(port string) error {
	c, err := newCMPair(port)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		began := time.Now()
		// Each round needs new queue pairs, because the number of a connected queue pair is in timewait.
		for i := range c.qps {
			if c.qps[i], err = c.createUnmappedQP(uapi.QPTRC, 1); err != nil {
				return err
			}
		}
		if err := c.connect(); err != nil {
			return err
		}
		if err := c.disconnect(); err != nil {
			return err
		}
		for _, qp := range c.qps {
			if _, _, err := writeCommand[uapi.DestroyQPResp](c.device, uapi.CmdDestroyQP,
				uapi.DestroyQP{QPHandle: qp.QPHandle}, nil,
				0); err != nil {
				return err
			}
		}
		fmt.Println("took", time.Since(began).Milliseconds())
	}
	return nil
}

// cmKeepConnection keeps a connection, and prints the state of the connection for each line of input.
func cmKeepConnection(port string) error {
	c, err := newCMPair(port)
	if err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	// Events of the active end go to a separate file, and not to the listener's file, which accepts no requests.
	own, err := openCM()
	if err != nil {
		return err
	}
	if err := issueCMCommand(own, ucm.CmdMigrateID, ucm.MigrateID{Response: own.responseAddr(), ID: c.ids[1],
		FD: uint32(c.passive.fd)}); err != nil {
		return err
	}
	fmt.Println("connected", c.qps[0].QPN, c.qps[1].QPN, c.ids[0], c.ids[1])
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		events := 0
		for _, f := range []*cmFile{c.active, own} {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}}, 200)
			events += n
		}
		text := "still connected"
		if events > 0 {
			text = "there are events"
		}
		if err := c.exchangeMessage("a message"); err != nil {
			text += ": " + err.Error()
		}
		fmt.Println(text)
	}
	return nil
}

// mapFile maps a file, to get memory that blocks access.
func mapFile(path string) ([]byte, error) {
	fd, err := syscall.Open(path, syscall.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return syscall.Mmap(fd, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

// cmStall blocks a call of the service on a page. The page holds the "command", the "response" of a command, the
// returned "event" or the value of an "option". With "pipe", this thread reads from the descriptor into the page.
func cmStall(what, path string) error {
	p, err := mapFile(path)
	if err != nil {
		return err
	}
	c, err := newCMPair("0")
	if err != nil {
		return err
	}
	f := c.active
	id, err := f.createID(spaceTCP, 1)
	if err == nil {
		err = f.resolveAddr(id, c.addr)
	}
	if err == nil { // the event has arrived
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}}, 5000)
	}
	if err != nil {
		return err
	}
	fmt.Println("posted")
	at := addressOf(p)
	switch what {
	case "command":
		_, err = syscall.Write(f.fd, p[:32])
	case "response":
		err = issueCMCommand(f, ucm.CmdCreateID, ucm.CreateID{UID: 1, Response: at, PS: spaceTCP})
	case "event":
		err = issueCMCommand(f, ucm.CmdGetEvent, ucm.GetEvent{Response: at})
	case "option":
		err = issueCMCommand(f, ucm.CmdSetOption, ucm.SetOption{OptVal: at, ID: id, OptLen: 1})
	case "pipe":
		go func() {
			time.Sleep(200 * time.Millisecond)
			_, err := f.waitEvent() // reads the byte from the pipe
			fmt.Println("event:", err)
		}()
		_, err = syscall.Read(f.fd, p[:1])
	default:
		return errors.New("unknown kind of stall")
	}
	fmt.Println(what, err)
	return nil
}

// cmFill makes objects of the connection manager until it is refused an object or has made the given number.
func cmFill(kind, number string) error {
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err == nil {
		l.Cur = l.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
	}
	d, err := open("uverbs0")
	if err != nil {
		return err
	}
	own := netip.AddrFrom16(d.gid).Unmap()
	f, err := openCM()
	if err != nil {
		return err
	}
	id, err := f.createID(spaceUDP, 1)
	if err == nil {
		err = f.bindID(id, netip.AddrPortFrom(own, 0))
	}
	if err != nil {
		return err
	}
	made := 0
	for ; made < n && err == nil; made++ {
		switch kind {
		case "ids":
			_, err = f.createID(spaceTCP, 1)
		case "ports", "listeners":
			var l uint32
			if l, err = f.createID(spaceTCP, 1); err == nil {
				err = f.bindID(l, netip.AddrPortFrom(own, 0))
			}
			if err == nil && kind == "listeners" {
				err = issueCMCommand(f, ucm.CmdListen, ucm.Listen{ID: l})
			}
		case "groups":
			err = issueCMCommand(f, ucm.CmdJoinMcast, ucm.JoinMcast{Response: f.responseAddr(), UID: 1, ID: id,
				AddrSize: sizeofSockaddrInet,
				Addr:     sockaddr(netip.MustParseAddrPort("239.1.2.3:0"))})
		case "files":
			var g *cmFile
			if g, err = openCM(); err == nil {
				_ = syscall.Munmap(g.mem)
			}
		case "netlink":
			_, err = syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, unix.NETLINK_RDMA)
		case "failures", "unread": // for one ID, or eight events for each ID; no program reads these events
			var c uint32
			if made == 0 || kind == "unread" && made%8 == 0 {
				id, err = f.createID(spaceTCP, 1)
			}
			c = id
			for try := 0; err == nil; try++ { // until the previous request has failed
				if err = f.resolveAddr(c, netip.MustParseAddrPort("240.0.0.1:1")); err == nil {
					break
				}
				if errors.Is(err, syscall.EINVAL) && try < 10000 {
					err = nil
					time.Sleep(10 * time.Microsecond)
				}
			}
		default:
			return fmt.Errorf("unknown kind %q", kind)
		}
	}
	if err != nil {
		made--
		fmt.Printf("%s refused after %d: %v\n", kind, made, err)
	}
	fmt.Printf("has %s=%d\n", kind, made)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("ok")
	}
	return nil
}

// cmClaimForeignQP connects to an address, and claims another program's queue pair as its own.
func cmClaimForeignQP(to, number string) error {
	a, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	qpn, err := strconv.ParseUint(number, 10, 24)
	if err != nil {
		return err
	}
	f, err := openCM()
	if err != nil {
		return err
	}
	id, err := f.newResolvedID(a)
	if err != nil {
		return err
	}
	err = issueCMCommand(f, ucm.CmdConnect, ucm.Connect{ConnParam: connParam(uint32(qpn)), ID: id})
	fmt.Println("connect:", err)
	time.Sleep(300 * time.Millisecond)
	return nil
}

// cmTryForeignIDs tries commands on IDs and memberships of other programs, and prints the commands that succeed.
func cmTryForeignIDs(most string) error {
	n, err := strconv.Atoi(most)
	if err != nil {
		return err
	}
	f, err := openCM()
	if err != nil {
		return err
	}
	a := netip.MustParseAddrPort("127.0.0.1:0")
	for i := range uint32(n) {
		for cmd, err := range map[ucm.Command]error{
			ucm.CmdDestroyID:    f.destroyID(i),
			ucm.CmdLeaveMcast:   issueCMCommand(f, ucm.CmdLeaveMcast, ucm.DestroyID{Response: f.responseAddr(), ID: i}),
			ucm.CmdBind:         f.bindID(i, a),
			ucm.CmdResolveAddr:  f.resolveAddr(i, a),
			ucm.CmdResolveRoute: issueCMCommand(f, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: i}),
			ucm.CmdQuery:        issueCMCommand(f, ucm.CmdQuery, ucm.Query{Response: f.responseAddr(), ID: i}),
			ucm.CmdQueryRoute:   issueCMCommand(f, ucm.CmdQueryRoute, ucm.Query{Response: f.responseAddr(), ID: i}),
			ucm.CmdConnect:      issueCMCommand(f, ucm.CmdConnect, ucm.Connect{ConnParam: connParam(1), ID: i}),
			ucm.CmdListen:       issueCMCommand(f, ucm.CmdListen, ucm.Listen{ID: i}),
			ucm.CmdAccept:       issueCMCommand(f, ucm.CmdAccept, ucm.Accept{ID: i, ConnParam: connParam(1)}),
			ucm.CmdReject:       issueCMCommand(f, ucm.CmdReject, ucm.Reject{ID: i}),
			ucm.CmdDisconnect:   issueCMCommand(f, ucm.CmdDisconnect, ucm.Disconnect{ID: i}),
			ucm.CmdInitQPAttr: issueCMCommand(f, ucm.CmdInitQPAttr, ucm.InitQPAttr{Response: f.responseAddr(), ID: i,
				QPState: 1}),
			ucm.CmdNotify: issueCMCommand(f, ucm.CmdNotify, ucm.Notify{ID: i, Event: 7}),
			ucm.CmdMigrateID: issueCMCommand(f, ucm.CmdMigrateID, ucm.MigrateID{Response: f.responseAddr(), ID: i,
				FD: uint32(f.fd)}),
			ucm.CmdJoinMcast: issueCMCommand(f, ucm.CmdJoinMcast, ucm.JoinMcast{Response: f.responseAddr(), ID: i,
				AddrSize: sizeofSockaddrInet,
				Addr:     sockaddr(netip.MustParseAddrPort("239.1.2.3:0"))}),
		} {
			if err == nil {
				fmt.Println(cmd, i)
			}
		}
	}
	fmt.Println("done")
	return nil
}

// cmWait waits in the given number of threads for an event that does not arrive.
func cmWait(threads string) error {
	n, err := strconv.Atoi(threads)
	if err != nil {
		return err
	}
	f, err := openCM()
	if err != nil {
		return err
	}
	for range n {
		go func() {
			b := encodeCommand(make([]byte, 64), ucm.CmdGetEvent, ucm.GetEvent{Response: f.responseAddr()}, 4096)
			_, _ = syscall.Write(f.fd, b)
		}()
	}
	time.Sleep(500*time.Millisecond + time.Duration(n)*time.Millisecond) // until all threads are in the call
	fmt.Println("waiting")
	bufio.NewScanner(os.Stdin).Scan()
	return nil
}

// nlRequest returns a netlink request of family NLDEV.
func nlRequest(cmd, flags uint16, attrs ...[]byte) []byte {
	b := make([]byte, 16)
	binary.NativeEndian.PutUint16(b[4:], 5<<10|cmd)
	binary.NativeEndian.PutUint16(b[6:], syscall.NLM_F_REQUEST|flags)
	b = append(b, slices.Concat(attrs...)...)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

func nlAttr(typ uint16, payload []byte) []byte {
	b := make([]byte, (4+len(payload)+3)&^3)
	binary.NativeEndian.PutUint16(b, uint16(4+len(payload)))
	binary.NativeEndian.PutUint16(b[2:], typ)
	copy(b[4:], payload)
	return b
}

// The following constants are commands and attributes of NLDEV.
const (
	nlNewLink, nlDelLink        = 3, 4
	nlQPGet, nlCMIDGet          = 10, 11
	nlDevIndex, nlDevName       = 1, 2
	nlNdevName, nlLinkType      = 51, 65
	nlQP, nlQPEntry, nlLocalQPN = 19, 20, 21
)

// nlLeaveUnread requests dumps of queue pairs on the given number of sockets, and reads no answer.
func nlLeaveUnread(sockets string) error {
	n, err := strconv.Atoi(sockets)
	if err != nil {
		return err
	}
	dump := nlRequest(nlQPGet, syscall.NLM_F_DUMP, nlAttr(nlDevIndex, make([]byte, 4)))
	made := 0
	for range n {
		s, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_NONBLOCK, unix.NETLINK_RDMA)
		if err != nil {
			fmt.Println("refused:", err)
			break
		}
		made++
		for range 100 {
			if syscall.Sendto(s, dump, syscall.MSG_DONTWAIT, nil) != nil {
				break
			}
		}
	}
	fmt.Println("asked on", made)
	bufio.NewScanner(os.Stdin).Scan()
	return nil
}

// nlChangeDevices tries to create and remove devices.
func nlChangeDevices() error {
	s, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, unix.NETLINK_RDMA)
	if err != nil {
		return err
	}
	for what, b := range map[string][]byte{
		"add": nlRequest(nlNewLink, syscall.NLM_F_ACK, nlAttr(nlDevName, []byte("mine\x00")),
			nlAttr(nlLinkType, []byte("rxe\x00")), nlAttr(nlNdevName, []byte("lo\x00"))),
		"delete": nlRequest(nlDelLink, syscall.NLM_F_ACK, nlAttr(nlDevIndex, make([]byte, 4))),
	} {
		if err := syscall.Sendto(s, b, 0, nil); err != nil {
			return err
		}
		answer := make([]byte, 4096)
		n, _, err := syscall.Recvfrom(s, answer, 0)
		if err != nil || n < 20 {
			return fmt.Errorf("%d bytes: %w", n, err)
		}
		fmt.Printf("%s: %v\n", what, syscall.Errno(-int32(binary.NativeEndian.Uint32(answer[16:]))))
	}
	return nil
}

// nlSendSocket opens a netlink socket and sends it to the listener at a path.
func nlSendSocket(path string) error {
	s, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, unix.NETLINK_RDMA)
	if err != nil {
		return err
	}
	return sendDescriptor(path, s)
}

// sendDescriptor sends a descriptor to the listener at a path.
func sendDescriptor(path string, fd int) error {
	c, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := syscall.Connect(c, &syscall.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	if err := syscall.Sendmsg(c, []byte{0}, syscall.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	fmt.Println("given")
	bufio.NewScanner(os.Stdin).Scan()
	return nil
}

// helloData is the private data by which cmServe recognises cmConnect.
const helloData = "hello"

// cmServe accepts requests with the right private data until its input ends, and rejects all other requests.
func cmServe(port string) error {
	c, err := newCMPair(port)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		os.Exit(0)
	}()
	f := c.passive
	for accepted, rejected := 0, 0; ; {
		e, err := f.waitEvent()
		if err != nil {
			return err
		}
		p, _ := uapi.Decode[ucm.ConnParam](e.Param[:])
		switch {
		case e.Event != connectRequest:
			continue
		case string(p.PrivateData[:len(helloData)]) == helloData:
			var qp uapi.CreateQPResp
			if qp, err = c.createUnmappedQP(uapi.QPTRC, 1); err == nil {
				err = issueCMCommand(f, ucm.CmdAccept, ucm.Accept{UID: 2, ConnParam: connParam(qp.QPN), ID: e.ID})
			}
			if err == nil {
				accepted++
				fmt.Println("accepted", accepted, "rejected", rejected)
			}
		default:
			err = issueCMCommand(f, ucm.CmdReject, ucm.Reject{ID: e.ID})
			if err == nil {
				err = f.destroyID(e.ID)
				rejected++
			}
		}
		if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) { // the peer may have cancelled
			return err
		}
	}
}

// cmConnect connects to cmServe, and retries while cmServe rejects it.
func cmConnect(to string) error {
	a, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	p, err := newLoopbackPair()
	if err != nil {
		return err
	}
	f, err := openCM()
	if err != nil {
		return err
	}
	for try := range 100 {
		id, err := f.newResolvedID(a)
		if err != nil {
			return err
		}
		par := connParam(p.qps[0].QPN)
		par.PrivateDataLen = uint8(copy(par.PrivateData[:], helloData))
		if err := issueCMCommand(f, ucm.CmdConnect, ucm.Connect{ConnParam: par, ID: id}); err != nil {
			return err
		}
		e, err := f.waitEvent()
		if err != nil {
			return err
		}
		if e.Event == connectAnswer {
			fmt.Println("connected after", try)
			return issueCMCommand(f, ucm.CmdAccept, ucm.Accept{UID: 1, ID: id})
		}
		if err := f.destroyID(id); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("connect: rejected after all retries")
}

// cmSendFile sends its file to the listener at a path.
func cmSendFile(path string) error {
	f, err := openCM()
	if err != nil {
		return err
	}
	return sendDescriptor(path, f.fd)
}

// cmUseReceivedFile listens on a path. It issues a command on the received file, at a descriptor number with trapped
// commands.
func cmUseReceivedFile(path string) error {
	own, err := openCM()
	if err != nil {
		return err
	}
	l, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		err = syscall.Bind(l, &syscall.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = os.Chmod(path, 0o777)
	}
	if err == nil {
		err = syscall.Listen(l, 1)
	}
	if err != nil {
		return err
	}
	fmt.Println("listening")
	c, _, err := syscall.Accept(l)
	if err != nil {
		return err
	}
	oob := make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := syscall.Recvmsg(c, make([]byte, 1), oob, 0)
	if err != nil {
		return err
	}
	list, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil || len(list) != 1 {
		return fmt.Errorf("%d messages: %w", len(list), err)
	}
	fds, err := syscall.ParseUnixRights(&list[0])
	if err != nil {
		return err
	}
	given := &cmFile{fd: own.fd - 10, mem: own.mem} // a number with trapped writes
	if err := unix.Dup3(fds[0], given.fd, 0); err != nil {
		return err
	}
	_, err = given.createID(spaceTCP, 1)
	fmt.Println("create:", err)
	return nil
}

// cmExec executes another program, "true", while threads wait for events and copies of the descriptor exist.
func cmExec() error {
	f, err := openCM()
	if err != nil {
		return err
	}
	if _, err := f.createID(spaceTCP, 1); err != nil {
		return err
	}
	for range 4 {
		go func() {
			b := encodeCommand(make([]byte, 64), ucm.CmdGetEvent, ucm.GetEvent{Response: f.responseAddr()}, 4096)
			_, _ = syscall.Write(f.fd, b)
		}()
	}
	time.Sleep(100 * time.Millisecond)
	return syscall.Exec("/bin/true", []string{"true"}, nil)
}
