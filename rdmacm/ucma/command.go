package ucma

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/uapi"
	"verbena/uapi/ucm"
	"verbena/umem"
)

// commandCall is a command in progress.
type commandCall struct {
	f     *File
	c     Caller
	space umem.Space
	in    []byte // the data after the header
	out   int    // size of the buffer for the response
	taken *TakenEvent

	response string // response as text, for the trace
}

// commandFuncs maps numbers to functions; nil means not implemented (ucma_cmd_table).
var commandFuncs = [ucm.NumCommands]func(*commandCall) error{
	ucm.CmdCreateID:     (*commandCall).createID,
	ucm.CmdDestroyID:    (*commandCall).destroyID,
	ucm.CmdBindIP:       (*commandCall).bindIP,
	ucm.CmdResolveIP:    (*commandCall).resolveIP,
	ucm.CmdResolveRoute: (*commandCall).resolveRoute,
	ucm.CmdQueryRoute:   (*commandCall).queryRoute,
	ucm.CmdConnect:      (*commandCall).connect,
	ucm.CmdListen:       (*commandCall).listen,
	ucm.CmdAccept:       (*commandCall).accept,
	ucm.CmdReject:       (*commandCall).reject,
	ucm.CmdDisconnect:   (*commandCall).disconnect,
	ucm.CmdInitQPAttr:   (*commandCall).initQPAttr,
	ucm.CmdGetEvent:     (*commandCall).getEvent,
	ucm.CmdSetOption:    (*commandCall).setOption,
	ucm.CmdNotify:       (*commandCall).notify,
	ucm.CmdJoinIPMcast:  (*commandCall).joinIPMcast,
	ucm.CmdLeaveMcast:   (*commandCall).leaveMcast,
	ucm.CmdMigrateID:    (*commandCall).migrateID,
	ucm.CmdQuery:        (*commandCall).query,
	ucm.CmdBind:         (*commandCall).bind,
	ucm.CmdResolveAddr:  (*commandCall).resolveAddr,
	ucm.CmdJoinMcast:    (*commandCall).joinMcast,

	ucm.CmdResolveIBService: (*commandCall).resolveIBService,
	ucm.CmdWriteCMEvent:     (*commandCall).writeCMEvent,
}

// maxCommand is the maximum length of a command, with its header.
const maxCommand = 8 + 16 + 128 + 128 + 288

// Write executes the command of n bytes at an address of the caller's memory, and returns n. For GET_EVENT, Write
// also returns the event. If the response does not reach the program, the caller must return the event with Requeue.
// Write may sleep, but does not wait for an event: see ErrNoEvent. (ucma_write)
func (f *File) Write(c Caller, addr uint64, n int) (int, *TakenEvent, error) {
	var buf [maxCommand]byte
	size := uapi.SizeOf[ucm.Hdr]()
	if n < size {
		return 0, nil, fmt.Errorf("command of %d bytes: %w", n, syscall.EINVAL)
	}
	space := c.Space()
	if err := space.ReadV([][]byte{buf[:size]}, addr); err != nil {
		return 0, nil, fmt.Errorf("read the command: %w", newMemoryFault(err))
	}
	h, _ := uapi.Decode[ucm.Hdr](buf[:])
	switch {
	case h.Cmd >= ucm.NumCommands:
		return 0, nil, fmt.Errorf("command %d: %w", h.Cmd, syscall.EINVAL)
	case int(h.In)+size > n:
		return 0, nil, fmt.Errorf("%v: got %d bytes of %d: %w", h.Cmd, n-size, h.In, syscall.EINVAL)
	case commandFuncs[h.Cmd] == nil:
		return 0, nil, fmt.Errorf("%v: %w", h.Cmd, syscall.ENOSYS)
	}
	in := buf[size:][:min(int(h.In), len(buf)-size)]
	if err := space.ReadV([][]byte{in}, addr+uint64(size)); err != nil {
		return 0, nil, fmt.Errorf("%v: read the command: %w", h.Cmd, newMemoryFault(err))
	}
	k := commandCall{f: f, c: c, space: space, in: in, out: int(h.Out)}
	err := f.callVerbFunc(h.Cmd)
	if err == nil {
		err = commandFuncs[h.Cmd](&k)
	}
	if t, ok := c.(Tracer); ok {
		t.TraceCM(h.Cmd.String()+k.describeObject(h.Cmd), k.response)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%v: %w", h.Cmd, err)
	}
	return n, k.taken, nil
}

// Tracer is implemented by a Caller that receives each command in readable form.
type Tracer interface {
	TraceCM(request, response string)
}

// idOffsets holds the offsets of the IDs in commands.
var idOffsets = [ucm.NumCommands]int{
	ucm.CmdDestroyID: 8, ucm.CmdBindIP: 36, ucm.CmdResolveIP: 56, ucm.CmdQueryRoute: 8, ucm.CmdConnect: 272,
	ucm.CmdAccept:     280,
	ucm.CmdInitQPAttr: 8, ucm.CmdSetOption: 8, ucm.CmdJoinIPMcast: 44, ucm.CmdLeaveMcast: 8, ucm.CmdMigrateID: 8,
	ucm.CmdQuery:     8,
	ucm.CmdJoinMcast: 16,
}

// describeObject describes the object of a command.
func (k *commandCall) describeObject(c ucm.Command) string {
	switch c {
	case ucm.CmdCreateID:
		return fmt.Sprintf("{%v}", msg.PortSpace(decodeCommand[ucm.CreateID](k).PS))
	case ucm.CmdGetEvent:
		return "{}"
	}
	if at := idOffsets[c]; len(k.in) >= at+4 {
		return fmt.Sprintf("{ID: %d}", binary.NativeEndian.Uint32(k.in[at:]))
	}
	return "{}"
}

// newMemoryFault returns EFAULT for any error of the caller's memory.
func newMemoryFault(err error) error { return fmt.Errorf("%w: %w", err, syscall.EFAULT) }

// decodeCommand decodes a command. Missing bytes at its end are zero.
func decodeCommand[T any](k *commandCall) T {
	v, _ := uapi.DecodePrefix[T](k.in[:min(len(k.in), uapi.SizeOf[T]())])
	return v
}

func encodeResponse[T any](b []byte, v *T) { uapi.Encode(b, v) }

// storeResponse stores a response. The buffer must have space for at least least bytes.
func storeResponse[T any](k *commandCall, addr uint64, v *T, least int) error {
	if k.out < least {
		return fmt.Errorf("buffer of %d bytes for a response of %d: %w", k.out, least, syscall.ENOSPC)
	}
	b := make([]byte, uapi.SizeOf[T]())
	uapi.Encode(b, v)
	return k.storeBytes(addr, b)
}

func (k *commandCall) storeBytes(addr uint64, b []byte) error {
	if err := k.space.WriteV([][]byte{b[:min(len(b), k.out)]}, addr); err != nil {
		return fmt.Errorf("store the response: %w", newMemoryFault(err))
	}
	return nil
}

func (k *commandCall) createID() error {
	cmd := decodeCommand[ucm.CreateID](k)
	if k.out < uapi.SizeOf[ucm.CreateIDResp]() {
		return syscall.ENOSPC
	}
	space, err := parsePortSpace(cmd.PS)
	if err != nil {
		return err
	}
	t := ib.QPTypeRC
	if space == msg.PortSpaceIB {
		t = ib.QPType(cmd.QPType)
	}
	s := k.f.srv
	var c *idContext
	cm, err := s.m.NewID(rdmacm.Options{
		Space: space, Type: t, MayUseLowPorts: k.c.MayBindLowPorts(),
		Event:   func(_ *rdmacm.ID, e rdmacm.Event) { s.handleEvent(c, e) },
		Listens: k.f.cfg.Alive, Owner: k.f,
	})
	if err != nil {
		return err
	}
	if c, err = s.addID(k.f, cm, cmd.UID); err != nil {
		cm.Destroy()
		return err
	}
	k.response = fmt.Sprintf("{ID: %d}", c.id)
	if err := storeResponse(k, cmd.Response, &ucm.CreateIDResp{ID: c.id}, 0); err != nil {
		s.mu.Lock()
		s.dropIDs(c)
		s.mu.Unlock()
		cm.Destroy()
		return err
	}
	return nil
}

func (k *commandCall) destroyID() error {
	cmd := decodeCommand[ucm.DestroyID](k)
	if k.out < uapi.SizeOf[ucm.DestroyIDResp]() {
		return syscall.ENOSPC
	}
	s := k.f.srv
	s.mu.Lock()
	c, err := k.f.lookupAnyID(cmd.ID)
	if err == nil {
		s.dropIDs(c)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	c.cm.Destroy()
	s.mu.Lock()
	n := c.reported
	s.mu.Unlock()
	return storeResponse(k, cmd.Response, &ucm.DestroyIDResp{EventsReported: n}, 0)
}

func (k *commandCall) bindIP() error {
	cmd := decodeCommand[ucm.BindIP](k)
	a := parseSockaddr(cmd.Addr[:])
	if a.family != 0 && a.size == 0 || a.family == afIB {
		return fmt.Errorf("address family %d: %w", a.family, syscall.EINVAL)
	}
	return k.bindIDTo(cmd.ID, a)
}

func (k *commandCall) bind() error {
	cmd := decodeCommand[ucm.Bind](k)
	a := parseSockaddr(cmd.Addr[:])
	if cmd.Reserved != 0 || cmd.AddrSize == 0 || int(cmd.AddrSize) != a.size {
		return fmt.Errorf("address of %d bytes, family %d: %w", cmd.AddrSize, a.family, syscall.EINVAL)
	}
	return k.bindIDTo(cmd.ID, a)
}

func (k *commandCall) bindIDTo(id uint32, a programSockaddr) error {
	c, err := k.f.findID(id)
	if err != nil {
		return err
	}
	switch {
	case a.family == afIB:
		return c.cm.BindGID(a.gid)
	case a.size == 0:
		return errUnknownFamily
	}
	return c.cm.Bind(a.ip)
}

func (k *commandCall) resolveIP() error {
	cmd := decodeCommand[ucm.ResolveIP](k)
	src, dst := parseSockaddr(cmd.SrcAddr[:]), parseSockaddr(cmd.DstAddr[:])
	if src.family != 0 && src.size == 0 || dst.size == 0 || src.family == afIB || dst.family == afIB {
		return fmt.Errorf("address families %d and %d: %w", src.family, dst.family, syscall.EINVAL)
	}
	return k.resolveIDAddr(cmd.ID, src, dst)
}

func (k *commandCall) resolveAddr() error {
	cmd := decodeCommand[ucm.ResolveAddr](k)
	src, dst := parseSockaddr(cmd.SrcAddr[:]), parseSockaddr(cmd.DstAddr[:])
	if cmd.Reserved != 0 || cmd.SrcSize != 0 && int(cmd.SrcSize) != src.size || cmd.DstSize == 0 ||
		int(cmd.DstSize) != dst.size {
		return fmt.Errorf("addresses of %d and %d bytes, families %d and %d: %w", cmd.SrcSize, cmd.DstSize, src.family,
			dst.family, syscall.EINVAL)
	}
	if cmd.SrcSize == 0 {
		src = programSockaddr{}
	}
	return k.resolveIDAddr(cmd.ID, src, dst)
}

func (k *commandCall) resolveIDAddr(id uint32, src, dst programSockaddr) error {
	c, err := k.f.findID(id)
	if err != nil {
		return err
	}
	if f := k.f; f.countUnread(c) >= maxUnreadEvents {
		return fmt.Errorf("%d events of the ID are unread: %w", maxUnreadEvents, syscall.ENOMEM)
	}
	if dst.family == afIB || src.family == afIB {
		return fmt.Errorf("InfiniBand addresses do not exist on Ethernet: %w", syscall.ENODEV)
	}
	return c.cm.ResolveAddr(src.ip, dst.ip)
}

// maxUnreadEvents limits the unread events of an ID that repeatedly fails to resolve an address. All other events
// change the state of the ID.
const maxUnreadEvents = 8

func (f *File) countUnread(c *idContext) int {
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	return c.unread
}

// stateAddrResolved is the state of an ID with a resolved address. (RDMA_CM_ADDR_RESOLVED)
const stateAddrResolved = 2

// resolveIBService refuses the request, because Ethernet has no subnet administration. (rdma_resolve_ib_service)
func (k *commandCall) resolveIBService() error {
	c, err := k.f.findID(decodeCommand[ucm.ResolveIBService](k).ID)
	if err != nil {
		return err
	}
	if state := c.cm.View().State; state != stateAddrResolved {
		return fmt.Errorf("ID %d has no resolved address, or a route: %w", c.id, syscall.EINVAL)
	}
	return fmt.Errorf("no subnet administration on Ethernet: %w", syscall.EOPNOTSUPP)
}

func (k *commandCall) resolveRoute() error {
	cmd := decodeCommand[ucm.ResolveRoute](k)
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	return c.cm.ResolveRoute()
}

// decodeParam decodes the parameters of a connection. (ucma_copy_conn_param)
func decodeParam(p *ucm.ConnParam) (rdmacm.Param, []byte) {
	return rdmacm.Param{
		QPN: p.QPNum, QKey: p.QKey, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl != 0, RetryCount: min(p.RetryCount, 7), RNRRetryCount: min(p.RNRRetryCount, 7),
		SRQ: p.SRQ != 0,
	}, p.PrivateData[:p.PrivateDataLen]
}

func (k *commandCall) connect() error {
	cmd := decodeCommand[ucm.Connect](k)
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	if cmd.ConnParam.Valid == 0 {
		return fmt.Errorf("the parameters are missing: %w", syscall.EINVAL)
	}
	p, data := decodeParam(&cmd.ConnParam)
	if err := k.checkOwnsQP(c, p.QPN); err != nil {
		return err
	}
	return c.cm.Connect(p, data)
}

// checkOwnsQP returns an error for the number of a queue pair that does not belong to the caller.
func (k *commandCall) checkOwnsQP(c *idContext, qpn uint32) error {
	switch c.cm.Type() {
	case ib.QPTypeRC, ib.QPTypeUC:
		if dev := c.cm.View().Device; dev != nil && !k.c.MayConnect(dev, qpn&0xffffff) {
			return fmt.Errorf("queue pair %d does not belong to the caller: %w", qpn, syscall.EINVAL)
		}
	}
	return nil
}

func (k *commandCall) listen() error {
	cmd := decodeCommand[ucm.Listen](k)
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	return c.cm.Listen(limitBacklog(cmd.Backlog))
}

// limitBacklog limits the backlog of a program. (ucma_listen)
func limitBacklog(n uint32) int {
	if n == 0 || n > MaxBacklog {
		return MaxBacklog
	}
	return int(n)
}

func (k *commandCall) accept() error {
	cmd := decodeCommand[ucm.Accept](k)
	s := k.f.srv
	if cmd.ConnParam.Valid != 0 {
		c, err := k.f.findID(cmd.ID)
		if err == nil {
			err = k.checkOwnsQP(c, cmd.ConnParam.QPNum)
		}
		if err != nil {
			return err
		}
	}
	s.mu.Lock() // no event may be queued between the acceptance and the assignment of the program's identifier
	defer s.mu.Unlock()
	c, err := k.f.lookupID(cmd.ID)
	if err != nil {
		return err
	}
	if cmd.ConnParam.Valid == 0 {
		return c.cm.Complete()
	}
	p, data := decodeParam(&cmd.ConnParam)
	if err := c.cm.Accept(p, data); err != nil {
		return err
	}
	c.uid = cmd.UID
	return nil
}

func (k *commandCall) reject() error {
	cmd := decodeCommand[ucm.Reject](k)
	reason := msg.RejectReason(cmd.Reason)
	switch reason {
	case 0:
		reason = msg.ReasonConsumer
	case msg.ReasonConsumer, msg.ReasonVendorOption:
	default:
		return fmt.Errorf("reason %d: %w", cmd.Reason, syscall.EINVAL)
	}
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	return c.cm.Reject(reason, cmd.PrivateData[:cmd.PrivateDataLen])
}

func (k *commandCall) disconnect() error {
	cmd := decodeCommand[ucm.Disconnect](k)
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	return c.cm.Disconnect()
}

func (k *commandCall) initQPAttr() error {
	cmd := decodeCommand[ucm.InitQPAttr](k)
	if k.out < uapi.SizeOf[ucm.QPAttr]() {
		return syscall.ENOSPC
	}
	if cmd.QPState > uint32(ib.QPErr) {
		return fmt.Errorf("state %d: %w", cmd.QPState, syscall.EINVAL)
	}
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	a, mask, err := c.cm.QPAttr(ib.QPState(cmd.QPState))
	if err != nil {
		return err
	}
	r := ucm.QPAttr{
		QPAttrMask: uint32(mask), QPState: uint32(a.State), PathMTU: uint32(a.PathMTU), QKey: a.QKey, RQPSN: a.RQPSN,
		SQPSN:     a.SQPSN,
		DestQPNum: a.DestQPN, QPAccessFlags: uint32(a.AccessFlags), AHAttr: userAHAttr(&a.AH), MaxRdAtomic: a.MaxRdAtomic,
		MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, PortNum: a.Port, Timeout: a.Timeout,
		RetryCnt: a.RetryCnt,
		RNRRetry: a.RNRRetry,
	}
	return storeResponse(k, cmd.Response, &r, 0)
}

// userAHAttr converts an address to the user ABI. (ib_copy_ah_attr_to_user)
func userAHAttr(a *ib.AHAttr) (u uapi.AHAttr) {
	u = uapi.AHAttr{DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: a.StaticRate, PortNum: a.Port}
	if a.HasGRH {
		u.IsGlobal = 1
		u.GRH = uapi.GlobalRoute{
			DGID: a.GRH.DGID, FlowLabel: a.GRH.FlowLabel, SGIDIndex: a.GRH.SGIDIndex, HopLimit: a.GRH.HopLimit,
			TrafficClass: a.GRH.TrafficClass,
		}
	}
	return u
}

func (k *commandCall) getEvent() error {
	cmd := decodeCommand[ucm.GetEvent](k)
	if k.out < ucm.MinEventResp {
		return syscall.ENOSPC
	}
	t, err := k.f.takeEvent()
	if err != nil {
		return err
	}
	if err := storeResponse(k, cmd.Response, &t.e.resp, 0); err != nil {
		t.Requeue()
		return err
	}
	if r := t.e.request; r != nil {
		r.cm.LeaveBacklog()
	}
	k.taken = t
	r := &t.e.resp
	k.response = fmt.Sprintf("{ID: %d, %v, Status: %d}", r.ID, rdmacm.EventType(r.Event), int32(r.Status))
	return nil
}

func (k *commandCall) setOption() error {
	cmd := decodeCommand[ucm.SetOption](k)
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	if cmd.Level == ucm.OptionIB && cmd.OptName == ucm.OptionIBPath {
		if cmd.OptLen == 0 || int(cmd.OptLen)%uapi.SizeOf[ucm.PathRecData]() != 0 {
			return syscall.EINVAL
		}
		return c.cm.ResolveRoute() // there is only one path to a peer, so the option is ignored
	}
	size := map[uint32]int{ucm.OptionIDTOS: 1, ucm.OptionIDReuseAddr: 4, ucm.OptionIDAFOnly: 4,
		ucm.OptionIDACKTimeout: 1}[cmd.OptName]
	if cmd.Level != ucm.OptionID || size == 0 {
		return fmt.Errorf("option %d of level %d: %w", cmd.OptName, cmd.Level, syscall.ENOSYS)
	}
	if int(cmd.OptLen) != size {
		return fmt.Errorf("option %d of %d bytes: %w", cmd.OptName, cmd.OptLen, syscall.EINVAL)
	}
	var b [4]byte
	if err := k.space.ReadV([][]byte{b[:size]}, cmd.OptVal); err != nil {
		return newMemoryFault(err)
	}
	v := b[0]
	if size == 4 && binary.NativeEndian.Uint32(b[:]) != 0 {
		v = 1
	}
	return c.cm.SetOption(rdmacm.Option(cmd.OptName), v)
}

func (k *commandCall) notify() error {
	cmd := decodeCommand[ucm.Notify](k)
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	if uapi.EventType(cmd.Event) != uapi.EventCommEst {
		return fmt.Errorf("event %d: %w", cmd.Event, syscall.EINVAL)
	}
	return c.cm.Establish()
}

func (k *commandCall) migrateID() error {
	cmd := decodeCommand[ucm.MigrateID](k)
	if k.out < uapi.SizeOf[ucm.MigrateResp]() {
		return syscall.ENOSPC
	}
	from, err := k.c.CMFile(int(int32(cmd.FD)))
	if err != nil {
		return err
	}
	if from.srv != k.f.srv {
		return syscall.EINVAL
	}
	s := k.f.srv
	s.mu.Lock()
	c, err := from.lookupID(cmd.ID)
	var n uint32
	if err == nil && k.f.closed {
		err = errFileClosed
	}
	if err == nil {
		n = c.reported
		s.moveIDToFile(c, k.f)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return storeResponse(k, cmd.Response, &ucm.MigrateResp{EventsReported: n}, 0)
}

// moveIDToFile moves an ID to another file, with its unread events. (ucma_migrate_id)
//
//verbena:held mu
func (s *Server) moveIDToFile(c *idContext, to *File) {
	from := c.file
	if from == to {
		return
	}
	moved := []*idContext{c}
	kept := from.events[:0:0]
	for _, e := range from.events {
		if e.ctx != c {
			kept = append(kept, e)
			continue
		}
		to.events = append(to.events, e)
		if r := e.request; r != nil && r.file == from {
			moved = append(moved, r)
		}
	}
	from.events = kept
	for _, m := range moved {
		delete(from.ids, m)
		to.ids[m] = struct{}{}
		m.file = to
	}
	s.signalReady(from)
	s.signalReady(to)
	s.wakeWaiters(to, len(to.events))
}
