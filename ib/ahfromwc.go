package ib

import (
	"fmt"
	"syscall"

	"verbena/roce"
)

// AddressOfSender returns the address for a reply to a datagram: the source and destination of the datagram are
// swapped. grh holds the first 40 bytes of the receive buffer, wc is the completion, and port is the port of arrival.
// AddressOfSender returns EINVAL if the completion has no GRH or if the datagram was sent to a multicast group, which
// cannot be a source address. On Ethernet the returned service level is 0, because the SL of the completion holds the
// packet type. AddressOfSender may sleep. (ib_init_ah_attr_from_wc)
func (d *Device) AddressOfSender(port int, wc *WC, grh []byte) (AHAttr, error) {
	defer d.enterSleeping("Device.AddressOfSender").leave()
	fail := func(why string) (AHAttr, error) {
		return AHAttr{}, fmt.Errorf("address of datagram sender on %s: %s: %w", d.name, why, syscall.EINVAL)
	}
	if wc.Flags&WCGRH == 0 || len(grh) < roce.GRHLen {
		return fail("no global route header")
	}
	h := roce.GRH(grh[:roce.GRHLen])
	if h.Version() == 0 {
		return fail("unknown version of the global route header")
	}
	attr, err := d.QueryPort(port)
	if err != nil {
		return AHAttr{}, err
	}
	a := AHAttr{HasGRH: true, Port: uint8(port), DLID: wc.SLID, SL: wc.SL, GRH: GlobalRoute{
		DGID: h.SGID(), FlowLabel: h.FlowLabel(), TrafficClass: h.TrafficClass(), HopLimit: 0xff,
	}}
	if attr.LinkLayer == LinkEthernet {
		a.SL = 0
	}
	own := h.DGID()
	for i := range min(attr.GIDTableLen, 1<<8) { // an address vector has 8 bits for the index
		if e, err := d.QueryGID(port, i); err == nil && e.GID == own {
			a.GRH.SGIDIndex = uint8(i)
			return a, nil
		}
	}
	return fail(fmt.Sprintf("%v is not in the GID table", own))
}
