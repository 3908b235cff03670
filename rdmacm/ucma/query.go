package ucma

import (
	"encoding/binary"
	"syscall"

	"verbena/ib"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/uapi"
	"verbena/uapi/ucm"
)

// The following constants are the packet lifetime and the rate of paths. (CMA_IBOE_PACKET_LIFETIME,
// IB_RATE_10_GBPS, IB_SA_EQ)
const (
	lifeTime     = 16
	rate10Gb     = 3
	selectEqual  = 2
	defaultPKey  = 0xffff
	pathHopLimit = 64
)

// The following constants are the offsets of the first fields that older programs do not use.
const (
	routeWithoutIndex = 200
	addrWithoutIndex  = 272
)

// invalidIndex is an unknown device index. (UCMA_INVALID_IB_INDEX)
const invalidIndex = 0xffffffff

func (k *commandCall) queryRoute() error {
	cmd := decodeCommand[ucm.Query](k)
	if k.out < routeWithoutIndex {
		return syscall.ENOSPC
	}
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	v := c.cm.View()
	r := ucm.QueryRouteResp{IBDevIndex: invalidIndex}
	putSockaddr(r.SrcAddr[:], v.Src)
	putSockaddr(r.DstAddr[:], v.Dst)
	if v.Device != nil {
		r.NodeGUID, r.PortNum = uapi.NewBE64(v.GUID), uint8(v.Port)
		if v.Routed {
			r.NumPaths = 1
		}
		r.IBRoute[0] = ucm.PathRec{
			DGID: v.DGID, SGID: v.SGID, FlowLabel: uapi.NewBE32(v.FlowLabel), Reversible: 1, MTU: uint32(v.MTU),
			PKey: uapi.NewBE16(defaultPKey), HopLimit: pathHopLimit, TrafficClass: v.TrafficClass, MTUSelector: selectEqual,
			RateSelector: selectEqual, Rate: rate10Gb, PacketLifeTimeSelector: selectEqual, PacketLifeTime: lifeTime,
		}
	}
	return storeResponse(k, cmd.Response, &r, routeWithoutIndex)
}

func (k *commandCall) query() error {
	cmd := decodeCommand[ucm.Query](k)
	c, err := k.f.findID(cmd.ID)
	if err != nil {
		return err
	}
	v := c.cm.View()
	if cmd.Option == ucm.QueryPath {
		return k.queryPath(cmd.Response, &v)
	}
	r := ucm.QueryAddrResp{IBDevIndex: invalidIndex}
	if v.Device != nil {
		r.NodeGUID, r.PortNum, r.PKey = uapi.NewBE64(v.GUID), uint8(v.Port), defaultPKey
	}
	switch cmd.Option {
	case ucm.QueryAddr:
		r.SrcSize, r.DstSize = uint16(putSockaddr(r.SrcAddr[:], v.Src)), uint16(putSockaddr(r.DstAddr[:], v.Dst))
	case ucm.QueryGID:
		r.SrcSize, r.DstSize = sizeofIB, sizeofIB
		putGID(r.SrcAddr[:], v.SGID, c.cm.Space(), v.Src.Port())
		putGID(r.DstAddr[:], v.DGID, c.cm.Space(), v.Dst.Port())
	default:
		return syscall.ENOSYS
	}
	return storeResponse(k, cmd.Response, &r, addrWithoutIndex)
}

// putGID encodes an InfiniBand address (struct sockaddr_ib).
func putGID(b []byte, g ib.GID, space msg.PortSpace, port uint16) {
	binary.NativeEndian.PutUint16(b, afIB)
	binary.BigEndian.PutUint16(b[2:], defaultPKey)
	copy(b[sizeofIBAddr:], g[:])
	binary.BigEndian.PutUint64(b[24:], uint64(msg.MakeServiceID(space, port)))
	binary.BigEndian.PutUint64(b[32:], ^uint64(0))
}

func (k *commandCall) queryPath(addr uint64, v *rdmacm.View) error {
	r := ucm.QueryPathResp{}
	if k.out < uapi.SizeOf[ucm.QueryPathResp]() {
		return syscall.ENOSPC
	}
	b := make([]byte, 0, uapi.SizeOf[ucm.QueryPathResp]()+uapi.SizeOf[ucm.PathRecData]())
	if v.Device != nil && v.Routed {
		r.NumPaths = 1
	}
	b = uapi.AppendTo(b, &r)
	if r.NumPaths > 0 && k.out >= cap(b) {
		d := ucm.PathRecData{Flags: ucm.PathGMP | ucm.PathPrimary | ucm.PathBidirectional}
		p := d.PathRec[:] // (IBA 15.2.5.16, struct ibv_path_record)
		copy(p[8:], v.DGID[:])
		copy(p[24:], v.SGID[:])
		binary.BigEndian.PutUint32(p[44:], v.FlowLabel<<8|pathHopLimit)
		p[48], p[49] = v.TrafficClass, 1<<7|1
		binary.BigEndian.PutUint16(p[50:], defaultPKey)
		p[54], p[55], p[56] = selectEqual<<6|uint8(v.MTU), selectEqual<<6|rate10Gb, selectEqual<<6|lifeTime
		b = uapi.AppendTo(b, &d)
	}
	return k.storeBytes(addr, b)
}
