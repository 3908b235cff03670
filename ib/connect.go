package ib

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
)

// Endpoint is the data that a peer needs for connecting to a queue pair, or for sending datagrams to a queue pair. The
// peers exchange their endpoints over a channel of their own, such as a TCP connection.
type Endpoint struct {
	GID  GID
	QPN  uint32
	PSN  uint32 // PSN of the first packet sent; 24 bits
	MTU  MTU
	QKey uint32 // for QPTypeUD
}

// Local is a local address for connections: a port and an entry of the GID table of the port.
type Local struct {
	Port     int
	GIDIndex int
	GID      GID
	MTU      MTU
}

// Local returns the address of a port that other hosts can most likely reach. Local prefers addresses that are not
// link-local, and then RoCE v2 to other types. Among equal addresses it returns the first one. Local returns
// EADDRNOTAVAIL if the port has no address. Local may sleep.
func (d *Device) Local(port int) (Local, error) {
	defer d.enterSleeping("Device.Local").leave()
	p, err := d.QueryPort(port)
	if err != nil {
		return Local{}, err
	}
	best, bestRank := Local{Port: port, MTU: p.ActiveMTU}, 0
	for i := range p.GIDTableLen {
		e, err := d.QueryGID(port, i)
		if err != nil || e.GID.IsZero() {
			continue
		}
		rank := 1
		if e.Type == GIDTypeRoCEv2 {
			rank++
		}
		if !netip.AddrFrom16(e.GID).Unmap().IsLinkLocalUnicast() {
			rank += 2
		}
		if rank > bestRank {
			best.GID, best.GIDIndex, bestRank = e.GID, i, rank
		}
	}
	if bestRank == 0 {
		return Local{}, fmt.Errorf("local address: port %d of %s has no GID: %w", port, d.name, syscall.EADDRNOTAVAIL)
	}
	return best, nil
}

// Endpoint returns the endpoint of a queue pair that will be connected from l. The initial PSN is random. Endpoint may
// not sleep.
func (l Local) Endpoint(qp *QP) Endpoint {
	return Endpoint{GID: l.GID, QPN: qp.Num(), PSN: rand.Uint32N(1 << 24), MTU: l.MTU}
}

// Path holds the options of a connection. The zero Path suits a local network.
type Path struct {
	Access       AccessFlags // as in Prepare; unused if Prepare was called
	MaxRdAtomic  uint8       // RDMA READs and atomics in flight, for each direction; 0 means 1
	MinRNRTimer  uint8       // code, IBA table 45: delay of the peer if no receive is posted; 0 means 1, 0.01 ms
	Timeout      uint8       // local ACK timeout: 4.096 us * 2^Timeout; 0 means 14, 67 ms
	RetryCnt     uint8       // retransmissions before the connection fails; 0 means 7
	RNRRetry     uint8       // retries to a peer without a posted receive; 0 means 7, unlimited
	SL           uint8
	HopLimit     uint8 // 0: 64
	TrafficClass uint8
	FlowLabel    uint32
}

// Prepare moves a connected queue pair (RC or UC) from RESET to INIT. In INIT receives can be posted. Receives should
// be posted before Connect: the peer may send as soon as its own Connect has returned, possibly before the local
// Connect returns. access is the set of operations that the peer may perform; regions have their own access rights.
// Prepare may sleep.
func (qp *QP) Prepare(l Local, access AccessFlags) error {
	defer qp.enterSleeping("QP.Prepare").leave()
	return qp.Modify(QPAttr{State: QPInit, Port: uint8(l.Port), AccessFlags: access},
		QPAttrState|QPAttrPKeyIndex|QPAttrPort|QPAttrAccessFlags)
}

// Connect moves a connected queue pair (RC or UC) to RTS, towards peer. The initial state is INIT (see Prepare) or
// RESET. own must be the endpoint that was sent to the peer. After an error the queue pair may be in any state up to
// RTR. The caller must move the queue pair to RESET or destroy it. Connect makes the transitions of IBA 11.2.5.2.
// Connect may sleep.
func (qp *QP) Connect(l Local, own, peer Endpoint, p Path) error {
	defer qp.enterSleeping("QP.Connect").leave()
	fail := func(err error) error {
		return fmt.Errorf("connect qp %d to %v qp %d: %w", qp.num, peer.GID, peer.QPN, err)
	}
	reliable := qp.Type() == QPTypeRC
	if !reliable && qp.Type() != QPTypeUC {
		return fail(fmt.Errorf("queue pairs of type %v cannot be connected: %w", qp.Type(), syscall.EINVAL))
	}
	if own.QPN != qp.num {
		return fail(fmt.Errorf("own endpoint belongs to qp %d: %w", own.QPN, syscall.EINVAL))
	}
	mtu := l.MTU
	for _, m := range []MTU{cmp.Or(own.MTU, l.MTU), cmp.Or(peer.MTU, l.MTU)} {
		if !m.Valid() {
			return fail(fmt.Errorf("invalid path MTU code %d: %w", m, syscall.EINVAL))
		}
		mtu = min(mtu, m)
	}
	attr := QPAttr{
		State: QPInit, Port: uint8(l.Port), AccessFlags: p.Access,
		PathMTU: mtu, DestQPN: peer.QPN, RQPSN: peer.PSN, SQPSN: own.PSN,
		AH: AHAttr{HasGRH: true, Port: uint8(l.Port), SL: p.SL, GRH: GlobalRoute{
			DGID: peer.GID, SGIDIndex: uint8(l.GIDIndex), HopLimit: cmp.Or(p.HopLimit, 64),
			TrafficClass: p.TrafficClass, FlowLabel: p.FlowLabel,
		}},
		MaxRdAtomic: max(p.MaxRdAtomic, 1), MaxDestRdAtomic: max(p.MaxRdAtomic, 1), MinRNRTimer: cmp.Or(p.MinRNRTimer, 1),
		Timeout: cmp.Or(p.Timeout, 14), RetryCnt: cmp.Or(p.RetryCnt, 7), RNRRetry: cmp.Or(p.RNRRetry, 7),
	}
	masks := [...]QPAttrMask{
		QPInit: QPAttrState | QPAttrPKeyIndex | QPAttrPort | QPAttrAccessFlags,
		QPRTR:  QPAttrState | QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN,
		QPRTS:  QPAttrState | QPAttrSQPSN,
	}
	if reliable {
		masks[QPRTR] |= QPAttrMaxDestRdAtomic | QPAttrMinRNRTimer
		masks[QPRTS] |= QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrMaxRdAtomic
	}
	if qp.State() == QPInit {
		attr.State = QPRTR
	}
	for ; attr.State <= QPRTS; attr.State++ {
		if err := qp.Modify(attr, masks[attr.State]); err != nil {
			return fail(err)
		}
	}
	return nil
}

// ConnectDatagram moves a datagram queue pair from RESET to RTS. The queue pair receives only datagrams with the Q_Key
// of own. ConnectDatagram may sleep.
func (qp *QP) ConnectDatagram(l Local, own Endpoint) error {
	defer qp.enterSleeping("QP.ConnectDatagram").leave()
	if qp.Type() != QPTypeUD {
		return fmt.Errorf("connect qp %d: queue pairs of type %v do not carry datagrams: %w", qp.num, qp.Type(),
			syscall.EINVAL)
	}
	attr := QPAttr{Port: uint8(l.Port), QKey: own.QKey, SQPSN: own.PSN}
	for _, step := range [...]struct {
		state QPState
		mask  QPAttrMask
	}{
		{QPInit, QPAttrPKeyIndex | QPAttrPort | QPAttrQKey}, {QPRTR, 0}, {QPRTS, QPAttrSQPSN},
	} {
		attr.State = step.state
		if err := qp.Modify(attr, QPAttrState|step.mask); err != nil {
			return fmt.Errorf("connect qp %d: %w", qp.num, err)
		}
	}
	return nil
}

// AddressTo returns the address of a peer, for [PD.CreateAH]. AddressTo may not sleep.
func (l Local) AddressTo(peer GID) AHAttr {
	return AHAttr{HasGRH: true, Port: uint8(l.Port), GRH: GlobalRoute{DGID: peer, SGIDIndex: uint8(l.GIDIndex),
		HopLimit: 64}}
}

// ConnectPair connects two queue pairs with each other: a at address l and b at address m. The queue pairs may belong
// to one device, or to devices that can reach each other. Each is in INIT or RESET, as for [QP.Connect]. After an
// error a may be in any state up to RTS, and b in any state up to RTR. ConnectPair may sleep.
func ConnectPair(a, b *QP, l, m Local, p Path) error {
	defer a.enterSleeping("ConnectPair").leave()
	x, y := l.Endpoint(a), m.Endpoint(b)
	if err := a.Connect(l, x, y, p); err != nil {
		return err
	}
	return b.Connect(m, y, x, p)
}
