package msg

// The layouts are those of IBA 12.6. Offsets are in bytes from the end of the datagram's header, and in bits from
// the most significant bit of a byte. (include/rdma/ibta_vol1_c12.h)

// reqPath visits the fields of a path in REQ. LAP has two paths at other offsets.
func (p *Path) reqPath(c *codec, at int) {
	field(c, at, 0, 16, &p.LocalLID)
	field(c, at+2, 0, 16, &p.RemoteLID)
	c.bytes(at+4, p.LocalGID[:])
	c.bytes(at+20, p.RemoteGID[:])
	field(c, at+36, 0, 20, &p.FlowLabel)
	field(c, at+39, 2, 6, &p.PacketRate)
	field(c, at+40, 0, 8, &p.TrafficClass)
	field(c, at+41, 0, 8, &p.HopLimit)
	field(c, at+42, 0, 4, &p.SL)
	flag(c, at+42, 4, &p.SubnetLocal)
	field(c, at+43, 0, 5, &p.ACKTimeout)
}

func (m *REQ) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 8, 0, 64, &m.ServiceID)
	field(c, 16, 0, 64, &m.LocalCAGUID)
	field(c, 28, 0, 32, &m.LocalQKey)
	field(c, 32, 0, 24, &m.LocalQPN)
	field(c, 35, 0, 8, &m.ResponderResources)
	field(c, 36, 0, 24, &m.LocalEECN)
	field(c, 39, 0, 8, &m.InitiatorDepth)
	field(c, 40, 0, 24, &m.RemoteEECN)
	field(c, 43, 0, 5, &m.RemoteTimeout)
	field(c, 43, 5, 2, &m.Transport)
	flag(c, 43, 7, &m.FlowControl)
	field(c, 44, 0, 24, &m.StartingPSN)
	field(c, 47, 0, 5, &m.LocalTimeout)
	field(c, 47, 5, 3, &m.RetryCount)
	field(c, 48, 0, 16, &m.PKey)
	field(c, 50, 0, 4, &m.PathMTU)
	flag(c, 50, 4, &m.RDCExists)
	field(c, 50, 5, 3, &m.RNRRetryCount)
	field(c, 51, 0, 4, &m.MaxCMRetries)
	flag(c, 51, 4, &m.SRQ)
	field(c, 51, 5, 3, &m.Extended)
	m.Primary.reqPath(c, 52)
	m.Alternate.reqPath(c, 96)
	flag(c, 139, 5, &m.SAPSupported)
	c.data(140, MaxREQData, &m.Data)
}

func (m *MRA) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	field(c, 8, 0, 2, &m.Of)
	field(c, 9, 0, 5, &m.ServiceTimeout)
	c.data(10, MaxMRAData, &m.Data)
}

func (m *REJ) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	field(c, 8, 0, 2, &m.Of)
	field(c, 9, 0, 7, &m.InfoLength)
	field(c, 10, 0, 16, &m.Reason)
	c.bytes(12, m.Info[:])
	c.data(84, MaxREJData, &m.Data)
}

func (m *REP) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	field(c, 8, 0, 32, &m.LocalQKey)
	field(c, 12, 0, 24, &m.LocalQPN)
	field(c, 16, 0, 24, &m.LocalEECN)
	field(c, 20, 0, 24, &m.StartingPSN)
	field(c, 24, 0, 8, &m.ResponderResources)
	field(c, 25, 0, 8, &m.InitiatorDepth)
	field(c, 26, 0, 5, &m.TargetACKDelay)
	field(c, 26, 5, 2, &m.Failover)
	flag(c, 26, 7, &m.FlowControl)
	field(c, 27, 0, 3, &m.RNRRetryCount)
	flag(c, 27, 3, &m.SRQ)
	field(c, 28, 0, 64, &m.LocalCAGUID)
	c.data(36, MaxREPData, &m.Data)
}

func (m *RTU) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	c.data(8, MaxRTUData, &m.Data)
}

func (m *DREQ) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	field(c, 8, 0, 24, &m.RemoteQPN)
	c.data(12, MaxDREQData, &m.Data)
}

func (m *DREP) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	c.data(8, MaxDREPData, &m.Data)
}

func (m *LAP) layout(c *codec) {
	p := &m.Alternate
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	field(c, 12, 0, 24, &m.RemoteQPN)
	field(c, 15, 0, 5, &m.RemoteTimeout)
	field(c, 20, 0, 16, &p.LocalLID)
	field(c, 22, 0, 16, &p.RemoteLID)
	c.bytes(24, p.LocalGID[:])
	c.bytes(40, p.RemoteGID[:])
	field(c, 56, 0, 20, &p.FlowLabel)
	field(c, 59, 0, 8, &p.TrafficClass)
	field(c, 60, 0, 8, &p.HopLimit)
	field(c, 61, 2, 6, &p.PacketRate)
	field(c, 62, 0, 4, &p.SL)
	flag(c, 62, 4, &p.SubnetLocal)
	field(c, 63, 0, 5, &p.ACKTimeout)
	c.data(64, MaxLAPData, &m.Data)
}

func (m *APR) layout(c *codec) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 4, 0, 32, &m.RemoteCommID)
	field(c, 8, 0, 8, &m.InfoLength)
	field(c, 9, 0, 8, &m.Status)
	c.bytes(12, m.Info[:])
	c.data(84, MaxAPRData, &m.Data)
}

func (m *SIDRREQ) layout(c *codec) {
	field(c, 0, 0, 32, &m.RequestID)
	field(c, 4, 0, 16, &m.PKey)
	field(c, 8, 0, 64, &m.ServiceID)
	c.data(16, MaxSIDRREQData, &m.Data)
}

func (m *SIDRREP) layout(c *codec) {
	field(c, 0, 0, 32, &m.RequestID)
	field(c, 4, 0, 8, &m.Status)
	field(c, 5, 0, 8, &m.InfoLength)
	field(c, 8, 0, 24, &m.QPN)
	field(c, 12, 0, 64, &m.ServiceID)
	field(c, 20, 0, 32, &m.QKey)
	c.bytes(24, m.Info[:])
	c.data(96, MaxSIDRREPData, &m.Data)
}
