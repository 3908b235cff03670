package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/uapi"
	"verbena/uapi/ucm"
	"verbena/verbs"
	"verbena/verbs/internal/cmid"
	"verbena/verbs/internal/transport"
)

// devicePath is the file of the connection manager.
const devicePath = "/dev/infiniband/rdma_cm"

// Open opens the connection manager of the kernel, or of the service under which the program runs. Open may sleep.
// (rdma_create_event_channel)
func Open() (*Manager, error) {
	f, err := transport.OpenCM(devicePath)
	if err != nil {
		return nil, fmt.Errorf("verbs/cm: %w", err)
	}
	return NewFile(f), nil
}

// NewFile creates a Manager for an open file. NewFile is for packages that open the file by other means than [Open].
func NewFile(f transport.CM) *Manager {
	b := &cmFile{f: f, ended: make(chan struct{}), ids: map[uint64]*cmFileID{}}
	go b.receiveEvents()
	return New(b)
}

// cmFile is an open rdma_cm file.
type cmFile struct {
	f     transport.CM
	ended chan struct{} // closed when no more events can arrive

	mu   sync.Mutex
	last uint64
	ids  map[uint64]*cmFileID // by the ID's number in events
	why  error                // reason why no more events arrive; nil while events arrive
}

// Close implements cmid.Backend.
func (b *cmFile) Close() error {
	b.mu.Lock()
	b.why = errManager
	b.ids = map[uint64]*cmFileID{}
	b.mu.Unlock()
	err := b.f.Close()
	<-b.ended
	return err
}

// issueCommand issues a command: its header, followed by req. at is the offset of the response's address in req, or -1.
func issueCommand[Resp, Req any](b *cmFile, c ucm.Command, req *Req, at int) (resp Resp, err error) {
	s := b.f.Scratch()
	defer s.Free()
	switch err := b.f.Write(s, encodeCommand(s, c, req, at, uapi.SizeOf[Resp]())); {
	case errors.Is(err, transport.ErrClosed):
		return resp, errManager
	case err != nil:
		return resp, fmt.Errorf("verbs/cm: %v: %w", c, err)
	}
	resp, _ = uapi.Decode[Resp](s.Mem[responseOffset:])
	return resp, nil
}

// responseOffset is the offset of responses in a Scratch.
const responseOffset = 2048

const cmdHeaderSize = 8

// encodeCommand writes a command to memory, and returns its length.
func encodeCommand[Req any](s *transport.Scratch, c ucm.Command, req *Req, at, out int) int {
	hdr := ucm.Hdr{Cmd: c, In: uint16(uapi.SizeOf[Req]()), Out: uint16(out)}
	b := uapi.AppendTo(uapi.AppendTo(s.Mem[:0], &hdr), req)
	if at >= 0 {
		binary.NativeEndian.PutUint64(b[cmdHeaderSize+at:], s.Addr+responseOffset)
	}
	clear(s.Mem[responseOffset : responseOffset+out])
	return len(b)
}

const (
	noResponse    = -1
	firstField    = 0
	createIDField = 8 // the field uid of CreateID precedes the address
)

type emptyResponse struct{}

// receiveEvents receives events until the file is closed.
func (b *cmFile) receiveEvents() {
	defer close(b.ended)
	s := b.f.Scratch()
	defer s.Free()
	for {
		n := encodeCommand(s, ucm.CmdGetEvent, &ucm.GetEvent{}, firstField, uapi.SizeOf[ucm.EventResp]())
		if err := b.f.Await(s, n); err != nil {
			if errors.Is(err, transport.ErrClosed) {
				err = nil
			}
			b.endWaits(err)
			return
		}
		e, _ := uapi.Decode[ucm.EventResp](s.Mem[responseOffset:])
		b.dispatchEvent(&e)
	}
}

// endWaits ends all waits for events. why is the reason; if why is nil, the file was closed.
func (b *cmFile) endWaits(why error) {
	b.mu.Lock()
	left := b.ids
	b.ids = map[uint64]*cmFileID{}
	if b.why = errManager; why != nil {
		b.why = fmt.Errorf("verbs/cm: wait for events: %w", why)
	}
	b.mu.Unlock()
	for _, id := range left {
		id.deliverEvent(cmid.Event{Type: cmid.DeviceRemoval})
	}
}

// dispatchEvent passes an event to its ID.
func (b *cmFile) dispatchEvent(r *ucm.EventResp) {
	b.mu.Lock()
	id := b.ids[r.UID]
	b.mu.Unlock()
	p, _ := uapi.Decode[ucm.ConnParam](r.Param[:])
	e := cmid.Event{Type: cmid.Type(r.Event), Status: int32(r.Status),
		Data: append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...), Param: cmid.Param{
			QPN: p.QPNum, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, RetryCount: p.RetryCount,
			RNRRetryCount: p.RNRRetryCount, SRQ: p.SRQ != 0,
		}}
	if e.Type == cmid.ConnectRequest {
		x := &cmFileID{b: b, id: r.ID}
		if b.assignNumber(x) != nil || id == nil { // the listener has been destroyed
			x.Destroy()
			return
		}
		e.New = x
	}
	if id != nil {
		id.deliverEvent(e)
	}
}

// assignNumber assigns to an ID the number that its events contain. assignNumber fails if no more events can arrive.
func (b *cmFile) assignNumber(id *cmFileID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why != nil {
		return b.why
	}
	b.last++
	id.uid = b.last
	b.ids[id.uid] = id
	return nil
}

// cmFileID is an ID of the file.
type cmFileID struct {
	b   *cmFile
	id  uint32
	uid uint64

	mu   sync.Mutex // held while the event function of the ID runs
	f    func(cmid.Event)
	gone bool
}

func (x *cmFileID) deliverEvent(e cmid.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.f != nil && !x.gone {
		x.f(e)
	} else if e.New != nil {
		go e.New.Destroy()
	}
}

// NewID implements cmid.Backend.
func (b *cmFile) NewID(f func(cmid.Event)) (cmid.ID, error) {
	x := &cmFileID{b: b, f: f}
	if err := b.assignNumber(x); err != nil {
		return nil, err
	}
	r, err := issueCommand[ucm.CreateIDResp](b, ucm.CmdCreateID,
		&ucm.CreateID{UID: x.uid, PS: portSpaceTCP, QPType: uint8(uapi.QPTRC)}, createIDField)
	if err != nil {
		b.removeID(x)
		return nil, err
	}
	x.id = r.ID
	return x, nil
}

// portSpaceTCP is RDMA_PS_TCP.
const portSpaceTCP = 0x0106

func (b *cmFile) removeID(x *cmFileID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ids, x.uid)
}

func (x *cmFileID) Bind(at netip.AddrPort) error {
	_, err := issueCommand[emptyResponse](x.b, ucm.CmdBindIP, &ucm.BindIP{Addr: encodeSockaddr(at), ID: x.id}, firstField)
	return err
}

func (x *cmFileID) Listen(backlog int) error {
	_, err := issueCommand[emptyResponse](x.b, ucm.CmdListen, &ucm.Listen{ID: x.id, Backlog: uint32(backlog)}, noResponse)
	return err
}

// resolveTimeout limits the resolution of an address, in milliseconds.
const resolveTimeout = 5000

func (x *cmFileID) ResolveAddr(src, dst netip.AddrPort) error {
	_, err := issueCommand[emptyResponse](x.b, ucm.CmdResolveIP, &ucm.ResolveIP{SrcAddr: encodeSockaddr(src),
		DstAddr: encodeSockaddr(dst), ID: x.id,
		TimeoutMs: resolveTimeout}, noResponse)
	return err
}

func (x *cmFileID) ResolveRoute() error {
	_, err := issueCommand[emptyResponse](x.b, ucm.CmdResolveRoute, &ucm.ResolveRoute{ID: x.id,
		TimeoutMs: resolveTimeout}, noResponse)
	return err
}

func connParam(p cmid.Param, data []byte) (c ucm.ConnParam, err error) {
	if len(data) > len(c.PrivateData)-1 {
		return c, fmt.Errorf("verbs/cm: private data of %d bytes: %w", len(data), syscall.EINVAL)
	}
	c = ucm.ConnParam{
		QPNum: p.QPN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, RetryCount: p.RetryCount,
		RNRRetryCount: p.RNRRetryCount, Valid: 1,
	}
	if p.SRQ {
		c.SRQ = 1
	}
	c.PrivateDataLen = uint8(copy(c.PrivateData[:], data))
	return c, nil
}

func (x *cmFileID) Connect(p cmid.Param, data []byte) error {
	c, err := connParam(p, data)
	if err != nil {
		return err
	}
	_, err = issueCommand[emptyResponse](x.b, ucm.CmdConnect, &ucm.Connect{ConnParam: c, ID: x.id}, noResponse)
	return err
}

func (x *cmFileID) Adopt(f func(cmid.Event)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.f = f
}

func (x *cmFileID) Accept(p cmid.Param, data []byte) error {
	c, err := connParam(p, data)
	if err != nil {
		return err
	}
	_, err = issueCommand[emptyResponse](x.b, ucm.CmdAccept, &ucm.Accept{UID: x.uid, ConnParam: c, ID: x.id}, noResponse)
	return err
}

func (x *cmFileID) Complete() error {
	_, err := issueCommand[emptyResponse](x.b, ucm.CmdAccept, &ucm.Accept{UID: x.uid, ID: x.id}, noResponse)
	return err
}

// rejectConsumerDefined is the reason code of a rejection by a program.
const rejectConsumerDefined = 28

func (x *cmFileID) Reject(data []byte) error {
	r := ucm.Reject{ID: x.id, Reason: rejectConsumerDefined}
	if len(data) > len(r.PrivateData)-1 {
		return fmt.Errorf("verbs/cm: private data of %d bytes: %w", len(data), syscall.EINVAL)
	}
	r.PrivateDataLen = uint8(copy(r.PrivateData[:], data))
	_, err := issueCommand[emptyResponse](x.b, ucm.CmdReject, &r, noResponse)
	return err
}

func (x *cmFileID) Disconnect() error {
	_, err := issueCommand[emptyResponse](x.b, ucm.CmdDisconnect, &ucm.Disconnect{ID: x.id}, noResponse)
	return err
}

func (x *cmFileID) QPAttr(to verbs.QPState) (a verbs.QPAttr, mask verbs.AttrMask, err error) {
	r, err := issueCommand[ucm.QPAttr](x.b, ucm.CmdInitQPAttr, &ucm.InitQPAttr{ID: x.id, QPState: uint32(to)}, firstField)
	if err != nil {
		return a, 0, err
	}
	g := r.AHAttr.GRH
	return verbs.QPAttr{
		State: verbs.QPState(r.QPState), Access: verbs.Access(r.QPAccessFlags), PKeyIndex: r.PKeyIndex, Port: r.PortNum,
		QKey: r.QKey,
		AH: verbs.AHAttr{
			GID: g.DGID, SGIDIndex: int(g.SGIDIndex), Port: int(r.AHAttr.PortNum), HopLimit: int(g.HopLimit),
			TrafficClass: g.TrafficClass,
			FlowLabel:    g.FlowLabel, SL: r.AHAttr.SL,
		},
		PathMTU: verbs.MTU(r.PathMTU), DestQPN: r.DestQPNum, RecvPSN: r.RQPSN, SendPSN: r.SQPSN, Timeout: r.Timeout,
		RetryCount: r.RetryCnt,
		RNRRetry:   r.RNRRetry, MinRNRTimer: r.MinRNRTimer, MaxReads: r.MaxRdAtomic, MaxPeerReads: r.MaxDestRdAtomic,
	}, verbs.AttrMask(r.QPAttrMask), nil
}

func (x *cmFileID) View() (cmid.View, error) {
	r, err := issueCommand[ucm.QueryRouteResp](x.b, ucm.CmdQueryRoute, &ucm.Query{ID: x.id}, firstField)
	if err != nil {
		return cmid.View{}, err
	}
	return cmid.View{Local: decodeSockaddr(r.SrcAddr), Remote: decodeSockaddr(r.DstAddr), NodeGUID: r.NodeGUID.Uint64(),
		Port: int(r.PortNum)}, nil
}

// Destroy implements cmid.ID. The file may already be closed, which has destroyed the ID as well.
func (x *cmFileID) Destroy() {
	x.mu.Lock()
	gone := x.gone
	x.gone = true
	x.mu.Unlock()
	if gone {
		return
	}
	x.b.removeID(x)
	_, _ = issueCommand[ucm.DestroyIDResp](x.b, ucm.CmdDestroyID, &ucm.DestroyID{ID: x.id}, firstField)
}

// encodeSockaddr converts an address to the form in commands. The zero AddrPort means no address.
func encodeSockaddr(a netip.AddrPort) (s ucm.SockaddrIn6) {
	ip := a.Addr().Unmap()
	binary.BigEndian.PutUint16(s[2:], a.Port())
	switch {
	case ip.Is4():
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET)
		b := ip.As4()
		copy(s[4:], b[:])
	case ip.Is6():
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET6)
		b := ip.As16()
		copy(s[8:], b[:])
	}
	return s
}

func decodeSockaddr(s ucm.SockaddrIn6) netip.AddrPort {
	port := binary.BigEndian.Uint16(s[2:])
	switch binary.NativeEndian.Uint16(s[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:8])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(s[8:24])), port)
	}
	return netip.AddrPort{}
}
