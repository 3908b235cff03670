package verbs

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"verbena/uapi"
)

// QPAttr holds the attributes of a queue pair. (struct ibv_qp_attr)
type QPAttr struct {
	State, CurState   QPState
	Access            Access // operations that the peer may perform
	PKeyIndex         uint16
	Port              uint8
	QKey              uint32
	AH                AHAttr // address of the peer
	PathMTU           MTU
	DestQPN           uint32
	RecvPSN, SendPSN  uint32
	Timeout           uint8 // code: 4.096 us * 2^Timeout; 0 means no timeout
	RetryCount        uint8 // 0 to 7
	RNRRetry          uint8 // 7: unlimited
	MinRNRTimer       uint8 // as a code
	MaxReads          uint8 // maximum in flight to the peer
	MaxPeerReads      uint8 // maximum in flight from the peer
	SQDraining        bool
	NotifyWhenDrained bool
}

// AttrMask selects attributes (enum ibv_qp_attr_mask).
type AttrMask = uapi.QPAttrMask

// The next constants are the attributes.
const (
	AttrState        = uapi.QPAttrState
	AttrCurState     = uapi.QPAttrCurState
	AttrAccess       = uapi.QPAttrAccessFlags
	AttrPKeyIndex    = uapi.QPAttrPKeyIndex
	AttrPort         = uapi.QPAttrPort
	AttrQKey         = uapi.QPAttrQKey
	AttrAH           = uapi.QPAttrAV
	AttrPathMTU      = uapi.QPAttrPathMTU
	AttrTimeout      = uapi.QPAttrTimeout
	AttrRetryCount   = uapi.QPAttrRetryCnt
	AttrRNRRetry     = uapi.QPAttrRNRRetry
	AttrRecvPSN      = uapi.QPAttrRQPSN
	AttrMaxReads     = uapi.QPAttrMaxQPRDAtomic
	AttrMinRNRTimer  = uapi.QPAttrMinRNRTimer
	AttrSendPSN      = uapi.QPAttrSQPSN
	AttrMaxPeerReads = uapi.QPAttrMaxDestRDAtomic
	AttrDestQPN      = uapi.QPAttrDestQPN
	AttrNotifySQD    = uapi.QPAttrEnSQDAsyncNotify
)

// Modify changes the attributes that mask selects. Modify returns EINVAL if the attributes do not suit the type and the
// transition. Modify may sleep. (ibv_modify_qp)
func (q *QP) Modify(a QPAttr, mask AttrMask) error {
	what := fmt.Sprintf("modify QP %d", q.num)
	if mask&AttrState != 0 {
		what = fmt.Sprintf("take QP %d to %v", q.num, a.State)
	}
	if err := a.AH.checkRange(); err != nil {
		return wrapOpError(what, q.pd.d.name, err)
	}
	req := uapi.ModifyQP{
		Dest: uapi.QPDest{
			DGID: a.AH.GID, FlowLabel: a.AH.FlowLabel, SGIDIndex: uint8(a.AH.SGIDIndex), HopLimit: a.AH.hopLimit(),
			TrafficClass: a.AH.TrafficClass,
			SL:           a.AH.SL, IsGlobal: 1, PortNum: a.AH.portNumber(),
		},
		QPHandle: q.handle, AttrMask: mask, QKey: a.QKey, RQPSN: a.RecvPSN, SQPSN: a.SendPSN, DestQPNum: a.DestQPN,
		QPAccessFlags: a.Access,
		PKeyIndex:     a.PKeyIndex, QPState: a.State, CurQPState: a.CurState, PathMTU: uint8(a.PathMTU),
		MaxRDAtomic:     a.MaxReads,
		MaxDestRDAtomic: a.MaxPeerReads, MinRNRTimer: a.MinRNRTimer, PortNum: a.Port, Timeout: a.Timeout,
		RetryCnt: a.RetryCount, RNRRetry: a.RNRRetry,
	}
	if a.NotifyWhenDrained {
		req.EnSQDAsyncNotify = 1
	}
	return wrapOpError(what, q.pd.d.name, q.life.callWhileOpen(func() error { return q.modifyState(req) }))
}

func (q *QP) modifyState(req uapi.ModifyQP) error {
	if req.AttrMask&AttrState == 0 {
		return q.pd.d.cmd.ModifyQP(req)
	}
	before := Reset
	if req.QPState == Reset {
		before = q.setState(Reset) // from here on no request is queued, because the device empties the queues
	}
	if err := q.pd.d.cmd.ModifyQP(req); err != nil {
		if req.QPState == Reset {
			q.setState(before)
		}
		return err
	}
	if req.QPState == Reset {
		q.send.Lock()
		defer q.send.Unlock()
		q.q.Reset()
		return nil
	}
	q.setState(req.QPState)
	return nil
}

// setState sets the state that PostSend and PostRecv check, and returns the former state.
func (q *QP) setState(s QPState) (before QPState) {
	q.send.Lock()
	defer q.send.Unlock()
	q.recv.Lock()
	defer q.recv.Unlock()
	before, q.now = q.now, s
	return before
}

// Query returns the attributes. Query may sleep. (ibv_query_qp)
func (q *QP) Query() (QPAttr, error) {
	var r uapi.QueryQPResp
	err := q.life.callWhileOpen(func() (err error) {
		r, err = q.pd.d.cmd.QueryQP(q.handle, ^AttrMask(0)>>11)
		return err
	})
	if err != nil {
		return QPAttr{}, wrapOpError(fmt.Sprintf("query QP %d", q.num), q.pd.d.name, err)
	}
	return QPAttr{
		State: r.QPState, CurState: r.CurQPState, Access: r.QPAccessFlags, PKeyIndex: r.PKeyIndex, Port: r.PortNum,
		QKey: r.QKey,
		AH: AHAttr{
			GID: r.Dest.DGID, SGIDIndex: int(r.Dest.SGIDIndex), Port: int(r.Dest.PortNum), HopLimit: int(r.Dest.HopLimit),
			TrafficClass: r.Dest.TrafficClass, FlowLabel: r.Dest.FlowLabel, SL: r.Dest.SL,
		},
		PathMTU: MTU(r.PathMTU), DestQPN: r.DestQPNum, RecvPSN: r.RQPSN, SendPSN: r.SQPSN, Timeout: r.Timeout,
		RetryCount: r.RetryCnt,
		RNRRetry:   r.RNRRetry, MinRNRTimer: r.MinRNRTimer, MaxReads: r.MaxRDAtomic, MaxPeerReads: r.MaxDestRDAtomic,
		SQDraining: r.SQDraining != 0,
	}, nil
}

// Endpoint is the data that a peer needs to connect to a queue pair. An Endpoint can be transferred as text, as JSON,
// or in EndpointSize bytes.
type Endpoint struct {
	GID  GID
	QPN  uint32
	PSN  uint32 // PSN of the first packet that the queue pair sends
	QKey uint32 // Q_Key of a UD or SRD queue pair
	MTU  MTU    // the largest MTU of the endpoint's port
}

// EndpointSize is the length of an Endpoint in bytes.
const EndpointSize = 32

// AppendBinary appends the encoding of the endpoint, EndpointSize bytes. The error is always nil.
func (e Endpoint) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, e.GID[:]...)
	b = binary.BigEndian.AppendUint32(b, e.QPN)
	b = binary.BigEndian.AppendUint32(b, e.PSN)
	b = binary.BigEndian.AppendUint32(b, e.QKey)
	return append(b, byte(e.MTU), 0, 0, 0), nil
}

// MarshalBinary returns the encoding of the endpoint, EndpointSize bytes. The error is always nil.
func (e Endpoint) MarshalBinary() ([]byte, error) { return e.AppendBinary(nil) }

// UnmarshalBinary decodes the encoding of AppendBinary.
func (e *Endpoint) UnmarshalBinary(b []byte) error {
	if len(b) != EndpointSize {
		return fmt.Errorf("verbs: endpoint has %d bytes, want %d: %w", len(b), EndpointSize, errInvalid)
	}
	copy(e.GID[:], b)
	e.QPN, e.PSN, e.QKey, e.MTU = binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:]),
		binary.BigEndian.Uint32(b[24:]), MTU(b[28])
	return nil
}

// Path holds the options of a connection. The zero Path suits most connections.
type Path struct {
	Port      int    // local port; 0 means 1
	SGIDIndex int    // local GID index; 0 means the index of Device.DefaultGID, and FirstGID means index 0
	Access    Access // operations that the peer may perform; 0 means all that the memory registration allows
	MTU       MTU    // 0 means the largest MTU that both ports support
	// Timeout is the time after which a packet without an acknowledgement is retransmitted. 0 means 67 ms.
	Timeout time.Duration
	// Retries is the number of retransmissions. RNRRetries is the number of retries of a message if the peer has no
	// posted receive. 0 means 7, which for RNRRetries means no limit. Never means none.
	Retries, RNRRetries int
	// RNRTimer is the delay that a peer waits before an RNR retry. 0 means 0.64 ms.
	RNRTimer time.Duration
	// Reads is the maximum number of READs and atomic operations in flight in each direction. 0 means the device's
	// limit, up to 16.
	Reads        int
	TrafficClass uint8
	FlowLabel    uint32
	QKey         uint32 // for UD and SRD queue pairs; 0 means DefaultQKey
}

const (
	// FirstGID is the value of Path.SGIDIndex for index 0.
	FirstGID = -1
	// Never is the count that means none, because 0 means the default.
	Never = -1
	// DefaultQKey is the default Q_Key of UD queue pairs.
	DefaultQKey = 0x11111111
)

// Local returns the endpoint of the queue pair, with the GID that the zero Path selects. Local may sleep.
func (q *QP) Local() (Endpoint, error) { return q.LocalVia(Path{}) }

// LocalVia returns the endpoint of a queue pair that will be connected with Path p.
func (q *QP) LocalVia(p Path) (Endpoint, error) {
	if err := q.life.callWhileOpen(func() error { return nil }); err != nil {
		return Endpoint{}, wrapOpError(fmt.Sprintf("query QP %d", q.num), q.pd.d.name, err)
	}
	gid, mtu, err := q.localAddress(&p)
	if err != nil {
		return Endpoint{}, err
	}
	return Endpoint{GID: gid.GID, QPN: q.num, PSN: q.initialPSN(), QKey: p.qkeyOrDefault(), MTU: mtu}, nil
}

func (p *Path) qkeyOrDefault() uint32 {
	if p.QKey == 0 {
		return DefaultQKey
	}
	return p.QKey
}

// initialPSN returns the initial PSN of the queue pair. The PSN does not change between calls.
func (q *QP) initialPSN() uint32 {
	k := &q.kept
	k.Lock()
	defer k.Unlock()
	if !k.have {
		k.psn, k.have = rand.Uint32()&0xffffff, true
	}
	return k.psn
}

// localAddress returns the local address and MTU for a path.
func (q *QP) localAddress(p *Path) (g GIDEntry, mtu MTU, err error) {
	if p.Port == 0 {
		p.Port = 1
	}
	attr, err := q.pd.d.QueryPort(p.Port)
	if err != nil {
		return g, 0, err
	}
	if p.SGIDIndex == 0 {
		g, err = q.pd.d.DefaultGID(p.Port)
		return g, attr.ActiveMTU, err
	}
	list, err := q.pd.d.GIDs()
	if err != nil {
		return g, 0, err
	}
	for _, e := range list {
		if e.Port == p.Port && e.Index == max(p.SGIDIndex, 0) {
			return e, attr.ActiveMTU, nil
		}
	}
	return g, 0, wrapOpError(fmt.Sprintf("find GID %d of port %d", max(p.SGIDIndex, 0), p.Port), q.pd.d.name, errNoGID)
}

// Connect moves the queue pair from RESET or INIT to RTS, connected to a peer. Receives should be posted before the
// peer can send: see Prepare. A UD or SRD queue pair has no peer and is activated instead: see Activate. Connect may
// sleep.
func (q *QP) Connect(peer Endpoint) error { return q.ConnectVia(peer, Path{}) }

// ConnectPair connects two queue pairs of this process to each other. ConnectPair may sleep.
func ConnectPair(a, b *QP) error {
	here, err := a.Local()
	if err != nil {
		return err
	}
	there, err := b.Local()
	if err != nil {
		return err
	}
	if err := a.Connect(there); err != nil {
		return err
	}
	return b.Connect(here)
}

// Prepare moves the queue pair from RESET to INIT. In INIT receives can be posted. Prepare may sleep.
func (q *QP) Prepare(p Path) error {
	if p.Port < 0 || p.Port > 255 {
		return wrapOpError(fmt.Sprintf("prepare QP %d", q.num), q.pd.d.name,
			fmt.Errorf("port %d is not within 1 to 255: %w", p.Port, errInvalid))
	}
	mask := AttrState | AttrPKeyIndex | AttrPort
	a := QPAttr{State: Init, Port: uint8(max(p.Port, 1)), Access: p.Access, QKey: p.qkeyOrDefault()}
	if q.init.hasNoPeer() {
		return q.Modify(a, mask|AttrQKey)
	}
	if a.Access == 0 {
		a.Access = LocalWrite | RemoteRead | RemoteWrite
		if q.init.Type == RC {
			a.Access |= RemoteAtomic
			d, err := q.pd.d.Query()
			if err != nil {
				return err
			}
			if d.Caps&uapi.DeviceFlushGlobal != 0 {
				a.Access |= FlushGlobal
			}
			if d.Caps&uapi.DeviceFlushPersistent != 0 {
				a.Access |= FlushPersistent
			}
		}
	}
	return q.Modify(a, mask|AttrAccess)
}

// Activate moves a UD or SRD queue pair from RESET or INIT to RTS. Activate may sleep.
func (q *QP) Activate(p Path) error {
	if !q.init.hasNoPeer() {
		return wrapOpError(fmt.Sprintf("activate QP %d", q.num), q.pd.d.name,
			fmt.Errorf("the queue pair is of type %v, which needs a peer: %w", q.init.Type, errInvalid))
	}
	if err := q.ensureInit(p); err != nil {
		return err
	}
	if err := q.Modify(QPAttr{State: RTR}, AttrState); err != nil {
		return err
	}
	mask := AttrState | AttrSendPSN
	if q.init.Type == SRD {
		mask |= AttrRNRRetry
	}
	return q.Modify(QPAttr{State: RTS, SendPSN: q.initialPSN(), RNRRetry: retryCode(p.RNRRetries)}, mask)
}

// ensureInit moves the queue pair to INIT, unless the queue pair is already in INIT.
func (q *QP) ensureInit(p Path) error {
	a, err := q.Query()
	if err != nil {
		return err
	}
	if a.State == Init {
		return nil
	}
	return q.Prepare(p)
}

// ConnectVia is Connect with the options of a Path.
func (q *QP) ConnectVia(peer Endpoint, p Path) error {
	if q.init.hasNoPeer() {
		return wrapOpError(fmt.Sprintf("connect QP %d", q.num), q.pd.d.name,
			fmt.Errorf("the queue pair is of type UD or SRD, which has no peer: %w", errInvalid))
	}
	if p.Reads < 0 || p.Reads > 255 {
		return wrapOpError(fmt.Sprintf("connect QP %d", q.num), q.pd.d.name,
			fmt.Errorf("%d READs in flight are not within 0 to 255: %w", p.Reads, errInvalid))
	}
	gid, mtu, err := q.localAddress(&p)
	if err != nil {
		return err
	}
	switch {
	case p.MTU != 0:
		mtu = p.MTU
	case peer.MTU != 0:
		mtu = min(mtu, peer.MTU)
	}
	if err := q.ensureInit(p); err != nil {
		return err
	}
	reads := p.Reads
	if reads == 0 && q.init.Type == RC {
		d, err := q.pd.d.Query()
		if err != nil {
			return err
		}
		reads = min(16, d.MaxQPReads, d.MaxQPInitReads)
	}
	rtr := QPAttr{
		State: RTR, PathMTU: mtu, DestQPN: peer.QPN, RecvPSN: peer.PSN, MaxPeerReads: uint8(reads),
		MinRNRTimer: rnrCode(p.RNRTimer),
		AH: AHAttr{GID: peer.GID, SGIDIndex: gid.Index, Port: p.Port, TrafficClass: p.TrafficClass,
			FlowLabel: p.FlowLabel},
	}
	mask := AttrState | AttrAH | AttrPathMTU | AttrDestQPN | AttrRecvPSN
	if q.init.Type == RC {
		mask |= AttrMaxPeerReads | AttrMinRNRTimer
	}
	if err := q.Modify(rtr, mask); err != nil {
		return err
	}
	rts := QPAttr{
		State: RTS, SendPSN: q.initialPSN(), Timeout: timeoutCode(p.Timeout), RetryCount: retryCode(p.Retries),
		RNRRetry: retryCode(p.RNRRetries), MaxReads: uint8(reads),
	}
	mask = AttrState | AttrSendPSN
	if q.init.Type == RC {
		mask |= AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxReads
	}
	return q.Modify(rts, mask)
}

// retryCode encodes a number of retries.
func retryCode(n int) uint8 {
	switch {
	case n == 0:
		return 7
	case n < 0:
		return 0
	}
	return uint8(min(n, 7))
}

// timeoutCode returns the code of the shortest local ACK timeout of at least d. (IBA 9.7.6.1.3)
func timeoutCode(d time.Duration) uint8 {
	if d <= 0 {
		return 14
	}
	for code := uint8(1); code < 31; code++ {
		if time.Duration(4096)<<code >= d {
			return code
		}
	}
	return 31
}

// rnrTimers holds the times of the codes, starting with code 1, in units of 10 us. (IBA table 46)
var rnrTimers = [...]time.Duration{
	1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
	12288, 16384, 24576, 32768, 49152,
}

// rnrCode returns the code of the shortest RNR timer of at least d.
func rnrCode(d time.Duration) uint8 {
	if d <= 0 {
		return 12
	}
	for i, t := range rnrTimers {
		if t*10*time.Microsecond >= d {
			return uint8(i + 1)
		}
	}
	return 0 // 655 ms
}
