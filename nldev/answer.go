package nldev

import (
	"cmp"
	"encoding/binary"
	"slices"
	"syscall"
)

// defaultDatagramSize is the size in bytes of the largest datagram for a program with an unknown receive buffer.
// defaultDatagramSize is the kernel's NLMSG_GOODSIZE with pages of 4096 bytes.
const defaultDatagramSize = 3776

// maxDatagramSize is the size in bytes of the kernel's largest datagram of a dump, 32 KiB less its own overhead.
const maxDatagramSize = 32<<10 - 320

// receiveQueueSize limits the bytes of the answers to one request, except dumps, like the default receive buffer of a
// socket (net.core.rmem_default).
const receiveQueueSize = 212992

// A Socket holds the properties of the program's netlink socket that affect answers.
type Socket struct {
	PortID uint32 // address of the program's socket, nl_pid
	// Datagram is the size in bytes of the largest datagram that the program can receive. Values below
	// defaultDatagramSize, such as 0, count as defaultDatagramSize. Values above 32448 count as 32448.
	Datagram int
	CapAck   bool // the program has set NETLINK_CAP_ACK, so an error does not repeat the request
}

// Answer returns the datagrams that answer one datagram of a program, in order. There may be none. Errors are
// included in the returned datagrams. A nil admin means a program without CAP_NET_ADMIN. For such a program,
// commands that change devices return EPERM, and the keys of memory regions and protection domains are hidden.
// Answer does not modify or keep request, and the caller owns the returned datagrams.
//
// Answer returns a complete dump, whose size is proportional to the number of reported objects. The other answers
// to one request are limited to the size of a receive buffer, 212992 bytes. Answer drops the rest, as the kernel
// does. Mirrors rdma_nl_rcv_skb.
func (s Socket) Answer(src Source, admin Admin, request []byte) (answers [][]byte) {
	s.Datagram = min(max(s.Datagram, defaultDatagramSize), maxDatagramSize)
	r := &datagramResponder{socket: s, src: src, admin: admin}
	for len(request) >= headerSize {
		size := binary.NativeEndian.Uint32(request)
		if size < headerSize || uint64(size) > uint64(len(request)) {
			break
		}
		r.answerMessage(request[:size:size])
		request = request[min(align(int(size)), len(request)):]
	}
	return r.out
}

// Refuse returns the answer to a datagram with messages that are not executed, which is an error for the first
// message.
func (s Socket) Refuse(request []byte, why syscall.Errno) [][]byte {
	r := &datagramResponder{socket: s}
	if len(request) < headerSize {
		return nil
	}
	size := binary.NativeEndian.Uint32(request)
	if size < headerSize || uint64(size) > uint64(len(request)) {
		return nil
	}
	r.parseHeader(request[:size:size]).queueAck(why)
	return r.out
}

// A datagramResponder answers the messages of one datagram.
type datagramResponder struct {
	socket Socket
	src    Source
	admin  Admin

	devices []Device // result of the last call of src.Devices, by index
	loaded  bool     // devices is up to date
	out     [][]byte
	queued  int  // number of bytes in out that are not part of a dump
	dumping bool // a dump has reported objects
}

// A request is one message.
type request struct {
	*datagramResponder
	msg   []byte // the message with its header
	typ   uint16
	flags uint16
	seq   uint32
	tb    requestAttrs // valid after parse
}

// A command answers one command of enum rdma_nldev_command. A command with a nil function is not supported. Mirrors
// struct rdma_nl_cbs.
type command struct {
	do    func(*request) syscall.Errno
	dump  func(*request, *dumpAnswer) syscall.Errno
	admin bool // RDMA_NL_ADMIN_PERM
}

// commandTable is nldev_cb_table.
var commandTable = [cmdCount]command{
	cmdGet:          {do: (*request).getDevice, dump: (*request).dumpDevices},
	cmdSet:          {do: (*request).setDevice, admin: true},
	cmdNewLink:      {do: (*request).newLink, admin: true},
	cmdDelLink:      {do: (*request).deleteLink, admin: true},
	cmdPortGet:      {do: (*request).getPort, dump: (*request).dumpPorts},
	cmdSysGet:       {do: (*request).getSystem},
	cmdSysSet:       {do: (*request).setSystem, admin: true},
	cmdResGet:       {do: (*request).getSummary, dump: (*request).dumpSummaries},
	cmdResQPGet:     newResourceCommand(kindQP, resource.putAttrs),
	cmdResCMIDGet:   newResourceCommand(kindCMID, resource.putAttrs),
	cmdResCQGet:     newResourceCommand(kindCQ, resource.putAttrs),
	cmdResMRGet:     newResourceCommand(kindMR, resource.putAttrs),
	cmdResPDGet:     newResourceCommand(kindPD, resource.putAttrs),
	cmdResCtxGet:    newResourceCommand(kindCtx, resource.putAttrs),
	cmdResSRQGet:    newResourceCommand(kindSRQ, resource.putAttrs),
	cmdResQPGetRaw:  requireAdmin(newResourceCommand(kindQP, refuseRawForm)),
	cmdResCQGetRaw:  requireAdmin(newResourceCommand(kindCQ, refuseRawForm)),
	cmdResMRGetRaw:  requireAdmin(newResourceCommand(kindMR, refuseRawForm)),
	cmdResSRQGetRaw: requireAdmin(newResourceCommand(kindSRQ, refuseRawForm)),
	cmdGetChardev:   {do: (*request).getChardev},
	cmdStatSet:      {do: (*request).setCounters, admin: true},
	cmdStatGet:      {do: (*request).getCounters, dump: (*request).dumpCounters},
	cmdStatDel:      {do: (*request).deleteCounter, admin: true},
	cmdStatStatus:   {do: (*request).getCounterStatus},
	cmdNewDev:       {do: (*request).newDevice, admin: true},
	cmdDelDev:       {do: (*request).deleteDevice, admin: true},
	cmdMonitor:      {}, // the type of notifications, which is not a request
}

// requireAdmin returns the command restricted to programs with CAP_NET_ADMIN.
func requireAdmin(c command) command {
	c.admin = true
	return c
}

// parseHeader reads the header of a message. The caller must have checked the length.
func (r *datagramResponder) parseHeader(msg []byte) *request {
	return &request{
		datagramResponder: r,
		msg:               msg,
		typ:               binary.NativeEndian.Uint16(msg[4:]),
		flags:             binary.NativeEndian.Uint16(msg[6:]),
		seq:               binary.NativeEndian.Uint32(msg[8:]),
	}
}

// answerMessage answers one message. The caller must have checked its length.
func (r *datagramResponder) answerMessage(msg []byte) {
	q := r.parseHeader(msg)
	var errno syscall.Errno
	if q.flags&flagRequest != 0 && q.typ >= typeMin {
		var dumped bool
		if errno, dumped = q.runCommand(); dumped {
			return
		}
	}
	if errno != 0 || q.flags&flagAck != 0 {
		q.queueAck(errno)
	}
}

// runCommand executes the command of the message. runCommand reports whether the answer is a dump, which is not
// acknowledged. Mirrors rdma_nl_rcv_msg.
func (q *request) runCommand() (errno syscall.Errno, dumped bool) {
	cmd := q.typ & commandMask
	if q.typ>>clientShift != clientNldev || cmd >= cmdCount {
		return syscall.EINVAL, false
	}
	c := &commandTable[cmd]
	isDump := q.flags&flagDump != 0
	switch {
	case c.admin && q.admin == nil:
		return syscall.EPERM, false
	case isDump && c.dump == nil, !isDump && c.do == nil:
		return syscall.EINVAL, false
	case isDump && q.dumping:
		return syscall.EBUSY, false
	case isDump:
		d := &dumpAnswer{request: q, cur: q.newDatagram()}
		d.endDump(c.dump(q, d))
		return 0, true
	}
	return c.do(q), false
}

// parseAttributes parses the attributes, and reports whether they are well-formed and include the given attributes. If
// not, the errno is EINVAL, except for SYS_GET.
func (q *request) parseAttributes(strict bool, need ...int) bool {
	return q.tb.parse(q.msg[headerSize:], strict) == 0 && q.tb.hasAll(need...)
}

// sortedDevices returns the devices, ordered by index.
func (r *datagramResponder) sortedDevices() []Device {
	if !r.loaded {
		r.devices = slices.Clone(r.src.Devices())
		slices.SortStableFunc(r.devices, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
		r.loaded = true
	}
	return r.devices
}

// requestedDevice returns the device that attribute DEV_INDEX of the parsed request names, or nil if it does not exist.
func (q *request) requestedDevice() *Device {
	devices, index := q.sortedDevices(), q.tb.getU32(attrDevIndex)
	i, ok := slices.BinarySearchFunc(devices, index, func(d Device, index uint32) int {
		return cmp.Compare(d.Index, index)
	})
	if !ok {
		return nil
	}
	return &devices[i]
}

// newDatagram returns an empty datagram with the size limit of the program.
func (r *datagramResponder) newDatagram() datagram { return datagram{size: r.socket.Datagram} }

// queueDatagram queues a datagram that is not part of a dump, or drops it if the receive queue of the program is full.
func (r *datagramResponder) queueDatagram(b []byte) {
	if r.queued+len(b) > receiveQueueSize {
		return
	}
	r.queued += len(b)
	r.out = append(r.out, b)
}

// reply queues the one message that answers the request. reply returns the error of fill, or EMSGSIZE if the
// message exceeds a datagram.
func (q *request) reply(cmd uint16, fill func(*datagram) syscall.Errno) syscall.Errno {
	d := q.newDatagram()
	at := d.beginMessage(clientNldev<<clientShift|cmd, 0, q.seq, q.socket.PortID)
	if errno := fill(&d); errno != 0 {
		return errno
	}
	if d.full {
		return syscall.EMSGSIZE
	}
	d.endMessage(at)
	q.queueDatagram(d.b)
	return 0
}

// queueAck queues the NLMSG_ERROR of the request. Error 0 is an acknowledgement. Mirrors netlink_ack.
func (q *request) queueAck(errno syscall.Errno) {
	var flags uint16
	echo := q.msg
	if errno == 0 || q.socket.CapAck {
		flags, echo = flagCapped, echo[:headerSize]
	}
	size := headerSize + 4 + len(echo)
	b := make([]byte, align(size))
	binary.NativeEndian.PutUint32(b, uint32(size))
	binary.NativeEndian.PutUint16(b[4:], typeError)
	binary.NativeEndian.PutUint16(b[6:], flags)
	binary.NativeEndian.PutUint32(b[8:], q.seq)
	binary.NativeEndian.PutUint32(b[12:], q.socket.PortID)
	binary.NativeEndian.PutUint32(b[headerSize:], uint32(-int32(errno)))
	copy(b[headerSize+4:], echo)
	q.queueDatagram(b)
}

// A dumpAnswer is the answer to a message with NLM_F_DUMP, under construction.
type dumpAnswer struct {
	*request
	cur datagram
}

// beginDumpMessage appends the header of a message to the current datagram.
func (d *dumpAnswer) beginDumpMessage() int {
	return d.cur.beginMessage(d.typ, flagMulti, d.seq, d.socket.PortID)
}

// flushDatagram queues the current datagram, if it has any message, and begins another datagram.
func (d *dumpAnswer) flushDatagram() {
	if len(d.cur.b) > 0 {
		d.out = append(d.out, d.cur.b)
		d.dumping = true
	}
	d.cur = d.newDatagram()
}

// addMessage appends a message. addMessage returns EMSGSIZE if the message exceeds a datagram of its own.
func (d *dumpAnswer) addMessage(fill func(*datagram)) syscall.Errno {
	if d.tryAddMessage(fill) {
		return 0
	}
	d.flushDatagram()
	if d.tryAddMessage(fill) {
		return 0
	}
	return syscall.EMSGSIZE
}

// tryAddMessage appends a message to the current datagram. tryAddMessage reports false, with nothing appended, if there
// is no space left.
func (d *dumpAnswer) tryAddMessage(fill func(*datagram)) bool {
	before := len(d.cur.b)
	at := d.beginDumpMessage()
	fill(&d.cur)
	if d.cur.full {
		d.cur.truncateTo(before)
		return false
	}
	d.cur.endMessage(at)
	return true
}

// endDump ends the dump with NLMSG_DONE. Mirrors netlink_dump_done.
func (d *dumpAnswer) endDump(errno syscall.Errno) {
	d.flushDatagram()
	at := d.cur.beginMessage(typeDone, flagMulti, d.seq, d.socket.PortID)
	if i, ok := d.cur.reserveBytes(4); ok {
		binary.NativeEndian.PutUint32(d.cur.b[i:], uint32(-int32(errno)))
	}
	d.cur.endMessage(at)
	d.out = append(d.out, d.cur.b)
}
