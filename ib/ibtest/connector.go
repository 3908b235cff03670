package ibtest

import (
	"fmt"

	"verbena/ib"
	"verbena/roce"
)

// connector connects queue pairs of a device through port 1.
type connector struct {
	*resultChecker
	dev            *ib.Device
	pinnedGIDIndex int // the index of the GID to use; negative: any

	// selectGID sets these fields.
	port     ib.PortAttr
	gid      ib.GID
	gidIndex int

	psn        uint32 // first PSN of the next connections, in both directions
	ackTimeout uint8  // code of the local ACK timeout of the next connections
	retries    uint8
}

func newConnector(r *resultChecker, dev *ib.Device, pinnedGIDIndex int) *connector {
	return &connector{
		resultChecker: r, dev: dev, pinnedGIDIndex: pinnedGIDIndex, psn: 0x123456, ackTimeout: 18, retries: 7,
	}
}

// selectGID selects the local GID.
func (c *connector) selectGID() {
	c.Helper()
	var err error
	c.port, err = c.dev.QueryPort(1)
	c.must("query port 1", err)
	for i := range c.port.GIDTableLen {
		if c.pinnedGIDIndex >= 0 && i != c.pinnedGIDIndex {
			continue
		}
		g, err := c.dev.QueryGID(1, i)
		c.must("query GID", err)
		if !g.GID.IsZero() {
			c.gid, c.gidIndex = g.GID, i
			return
		}
	}
	c.Fatal("port 1 has no GID to use")
}

// newQPAttr returns valid values of all attributes for a queue pair that is connected to dest.
func (c *connector) newQPAttr(state ib.QPState, dest uint32) ib.QPAttr {
	return ib.QPAttr{
		State: state, Port: 1, QKey: qkey, AccessFlags: remote, AH: c.ownAddress(), PathMTU: c.port.ActiveMTU, DestQPN: dest,
		RQPSN: c.psn, SQPSN: c.psn, MaxDestRdAtomic: 1, MaxRdAtomic: 1, MinRNRTimer: 1, Timeout: c.ackTimeout,
		RetryCnt: c.retries, RNRRetry: 7,
	}
}

// ownAddress returns the address of the device itself.
func (c *connector) ownAddress() ib.AHAttr {
	return ib.AHAttr{
		GRH:    ib.GlobalRoute{DGID: c.gid, SGIDIndex: uint8(c.gidIndex), HopLimit: 64},
		HasGRH: true, Port: 1,
	}
}

// resetQPs moves queue pairs to RESET. Later connections use other packet sequence numbers, so that late packets of the
// former connections are not accepted.
func (c *connector) resetQPs(qps ...*ib.QP) {
	c.Helper()
	for _, qp := range qps {
		c.must("modify to RESET", qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	}
	c.psn = (c.psn + 0x10001) & 0xffffff
}

// moveQPUpTo moves a queue pair to INIT, RTR or RTS, to exchange messages with dest.
func (c *connector) moveQPUpTo(qp *ib.QP, dest uint32, state ib.QPState) {
	c.Helper()
	kind := qp.Type()
	for s := ib.QPInit; s <= state; s++ {
		c.must(fmt.Sprintf("modify %v qp to %v", kind, s), qp.Modify(c.newQPAttr(s, dest), transitionMask(kind, s)))
	}
}

// checkDatagramRoute checks the header that precedes a datagram of side 0.
func (c *connector) checkDatagramRoute(what string, header []byte, a ib.AHAttr) {
	c.Helper()
	h := roce.GRH(header[:roce.GRHLen])
	const dscp = 0xfc // the network may change the two low bits
	if h.Version() == 0 {
		c.Fatalf("%s: a header of no known version: %x", what, header[:roce.GRHLen])
	}
	if got, want := h.TrafficClass()&dscp, a.GRH.TrafficClass&dscp; got != want {
		c.Errorf("%s: traffic class: got %#x, want %#x", what, got, want)
	}
	if h.HopLimit() != a.GRH.HopLimit {
		c.Errorf("%s: hop limit: got %d, want %d", what, h.HopLimit(), a.GRH.HopLimit)
	}
	if f := h.FlowLabel(); f != 0 && f != a.GRH.FlowLabel { // some networks do not carry flow labels
		c.Errorf("%s: flow label: got %#x, want %#x", what, f, a.GRH.FlowLabel)
	}
	if !c.hasGID(h.SGID()) || !c.hasGID(h.DGID()) {
		c.Errorf("%s: from %v to %v, want GIDs of the device, such as %v", what, h.SGID(), h.DGID(), c.gid)
	}
}

// hasGID reports whether a GID belongs to the device. The GID of the packet may differ from the requested one: a
// default GID is not always usable as a packet's address.
func (c *connector) hasGID(g ib.GID) bool {
	c.Helper()
	for i := range c.port.GIDTableLen {
		if have, err := c.dev.QueryGID(1, i); err == nil && have.GID == g {
			return true
		}
	}
	return false
}

// unreachableAddress returns an address without a receiver that the handle may have.
func (c *connector) unreachableAddress(ah *ib.AH) ib.AHAttr {
	c.Helper()
	var err error
	for i := range c.port.GIDTableLen { // a neighbour of the device
		a := c.ownAddress()
		g, qerr := c.dev.QueryGID(1, i)
		c.must("query GID", qerr)
		if a.GRH.DGID = g.GID; g.GID.IsZero() {
			continue
		}
		a.GRH.DGID[15] ^= 0x11
		if err = ah.Modify(&a); err == nil {
			here := c.ownAddress()
			c.must("modify ah", ah.Modify(&here))
			return a
		}
	}
	c.Fatalf("modify ah to the address of a neighbour: %v", err)
	return ib.AHAttr{}
}

// disableAckTimeout gives later connections no timeout if disable is true.
func (c *connector) disableAckTimeout(disable bool) (back func()) {
	timeout := c.ackTimeout
	if disable {
		c.ackTimeout = 0
	}
	return func() { c.ackTimeout = timeout }
}

// useShortestTimeout gives later connections the shortest timeout.
func (c *connector) useShortestTimeout() (back func()) {
	timeout, retries := c.ackTimeout, c.retries
	c.ackTimeout, c.retries = 8, 1 // 1 ms
	return func() { c.ackTimeout, c.retries = timeout, retries }
}
