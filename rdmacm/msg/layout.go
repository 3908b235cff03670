package msg

// The layouts are those of IBA 12.6. Offsets are in bytes from the end of the datagram's header, and in bits from
// the most significant bit of a byte. (include/rdma/ibta_vol1_c12.h)

// visitREQPath visits the fields of a path in REQ. LAP has two paths at other offsets.
func (p *Path) visitREQPath(c *codec, at int) {
	visitField(c, at, 0, 16, &p.LocalLID)
	visitField(c, at+2, 0, 16, &p.RemoteLID)
	c.visitBytes(at+4, p.LocalGID[:])
	c.visitBytes(at+20, p.RemoteGID[:])
	visitField(c, at+36, 0, 20, &p.FlowLabel)
	visitField(c, at+39, 2, 6, &p.PacketRate)
	visitField(c, at+40, 0, 8, &p.TrafficClass)
	visitField(c, at+41, 0, 8, &p.HopLimit)
	visitField(c, at+42, 0, 4, &p.SL)
	visitFlag(c, at+42, 4, &p.SubnetLocal)
	visitField(c, at+43, 0, 5, &p.ACKTimeout)
}

func (m *REQ) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 8, 0, 64, &m.ServiceID)
	visitField(c, 16, 0, 64, &m.LocalCAGUID)
	visitField(c, 28, 0, 32, &m.LocalQKey)
	visitField(c, 32, 0, 24, &m.LocalQPN)
	visitField(c, 35, 0, 8, &m.ResponderResources)
	visitField(c, 36, 0, 24, &m.LocalEECN)
	visitField(c, 39, 0, 8, &m.InitiatorDepth)
	visitField(c, 40, 0, 24, &m.RemoteEECN)
	visitField(c, 43, 0, 5, &m.RemoteTimeout)
	visitField(c, 43, 5, 2, &m.Transport)
	visitFlag(c, 43, 7, &m.FlowControl)
	visitField(c, 44, 0, 24, &m.StartingPSN)
	visitField(c, 47, 0, 5, &m.LocalTimeout)
	visitField(c, 47, 5, 3, &m.RetryCount)
	visitField(c, 48, 0, 16, &m.PKey)
	visitField(c, 50, 0, 4, &m.PathMTU)
	visitFlag(c, 50, 4, &m.RDCExists)
	visitField(c, 50, 5, 3, &m.RNRRetryCount)
	visitField(c, 51, 0, 4, &m.MaxCMRetries)
	visitFlag(c, 51, 4, &m.SRQ)
	visitField(c, 51, 5, 3, &m.Extended)
	m.Primary.visitREQPath(c, 52)
	m.Alternate.visitREQPath(c, 96)
	visitFlag(c, 139, 5, &m.SAPSupported)
	c.visitData(140, MaxREQData, &m.Data)
}

func (m *MRA) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	visitField(c, 8, 0, 2, &m.Of)
	visitField(c, 9, 0, 5, &m.ServiceTimeout)
	c.visitData(10, maxMRAData, &m.Data)
}

func (m *REJ) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	visitField(c, 8, 0, 2, &m.Of)
	visitField(c, 9, 0, 7, &m.InfoLength)
	visitField(c, 10, 0, 16, &m.Reason)
	c.visitBytes(12, m.Info[:])
	c.visitData(84, MaxREJData, &m.Data)
}

func (m *REP) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	visitField(c, 8, 0, 32, &m.LocalQKey)
	visitField(c, 12, 0, 24, &m.LocalQPN)
	visitField(c, 16, 0, 24, &m.LocalEECN)
	visitField(c, 20, 0, 24, &m.StartingPSN)
	visitField(c, 24, 0, 8, &m.ResponderResources)
	visitField(c, 25, 0, 8, &m.InitiatorDepth)
	visitField(c, 26, 0, 5, &m.TargetACKDelay)
	visitField(c, 26, 5, 2, &m.Failover)
	visitFlag(c, 26, 7, &m.FlowControl)
	visitField(c, 27, 0, 3, &m.RNRRetryCount)
	visitFlag(c, 27, 3, &m.SRQ)
	visitField(c, 28, 0, 64, &m.LocalCAGUID)
	c.visitData(36, MaxREPData, &m.Data)
}

func (m *RTU) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	c.visitData(8, maxRTUData, &m.Data)
}

func (m *DREQ) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	visitField(c, 8, 0, 24, &m.RemoteQPN)
	c.visitData(12, maxDREQData, &m.Data)
}

func (m *DREP) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	c.visitData(8, maxDREPData, &m.Data)
}

func (m *LAP) visitFields(c *codec) {
	p := &m.Alternate
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	visitField(c, 12, 0, 24, &m.RemoteQPN)
	visitField(c, 15, 0, 5, &m.RemoteTimeout)
	visitField(c, 20, 0, 16, &p.LocalLID)
	visitField(c, 22, 0, 16, &p.RemoteLID)
	c.visitBytes(24, p.LocalGID[:])
	c.visitBytes(40, p.RemoteGID[:])
	visitField(c, 56, 0, 20, &p.FlowLabel)
	visitField(c, 59, 0, 8, &p.TrafficClass)
	visitField(c, 60, 0, 8, &p.HopLimit)
	visitField(c, 61, 2, 6, &p.PacketRate)
	visitField(c, 62, 0, 4, &p.SL)
	visitFlag(c, 62, 4, &p.SubnetLocal)
	visitField(c, 63, 0, 5, &p.ACKTimeout)
	c.visitData(64, maxLAPData, &m.Data)
}

func (m *APR) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.LocalCommID)
	visitField(c, 4, 0, 32, &m.RemoteCommID)
	visitField(c, 8, 0, 8, &m.InfoLength)
	visitField(c, 9, 0, 8, &m.Status)
	c.visitBytes(12, m.Info[:])
	c.visitData(84, maxAPRData, &m.Data)
}

func (m *SIDRREQ) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.RequestID)
	visitField(c, 4, 0, 16, &m.PKey)
	visitField(c, 8, 0, 64, &m.ServiceID)
	c.visitData(16, MaxSIDRREQData, &m.Data)
}

func (m *SIDRREP) visitFields(c *codec) {
	visitField(c, 0, 0, 32, &m.RequestID)
	visitField(c, 4, 0, 8, &m.Status)
	visitField(c, 5, 0, 8, &m.InfoLength)
	visitField(c, 8, 0, 24, &m.QPN)
	visitField(c, 12, 0, 64, &m.ServiceID)
	visitField(c, 20, 0, 32, &m.QKey)
	c.visitBytes(24, m.Info[:])
	c.visitData(96, MaxSIDRREPData, &m.Data)
}
