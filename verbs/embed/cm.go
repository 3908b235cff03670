package embed

import (
	"net/netip"
	"sync"

	"verbena/ib"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/internal/cmid"
)

// ConnectionManager opens the connection manager of the core's devices. A core can have only one connection manager. m
// is an existing one. If m is nil, the Stack creates its own connection manager at the first call, and closes it after
// the last user. ConnectionManager may sleep.
func (s *Stack) ConnectionManager(m *rdmacm.Manager) (*cm.Manager, error) {
	if m != nil {
		return cm.New(cmBackend{m, func() {}}), nil
	}
	o := &s.cm
	o.Lock()
	defer o.Unlock()
	if o.users == 0 {
		var err error
		if o.m, err = rdmacm.New(s.core, rdmacm.Config{}); err != nil {
			return nil, err
		}
	}
	o.users++
	return cm.New(cmBackend{o.m, sync.OnceFunc(o.release)}), nil
}

// sharedManager is the Stack's own connection manager.
type sharedManager struct {
	//verbena:program those of this program who open and close the connection manager
	sync.Mutex
	m     *rdmacm.Manager
	users int
}

func (o *sharedManager) release() {
	o.Lock()
	defer o.Unlock()
	if o.users--; o.users == 0 {
		o.m.Close()
		o.m = nil
	}
}

// cmBackend implements cmid.Backend.
type cmBackend struct {
	m   *rdmacm.Manager
	end func()
}

func (b cmBackend) Close() error {
	b.end()
	return nil
}

func (b cmBackend) NewID(f func(cmid.Event)) (cmid.ID, error) {
	id, err := b.m.NewID(rdmacm.Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, Event: translateEvents(f)})
	if err != nil {
		return nil, err
	}
	return managerID{id}, nil
}

// translateEvents converts an event function to an event function of package rdmacm.
func translateEvents(f func(cmid.Event)) func(*rdmacm.ID, rdmacm.Event) {
	return func(_ *rdmacm.ID, e rdmacm.Event) {
		p := e.Param
		x := cmid.Event{Type: cmid.Type(e.Type), Status: e.Status, Data: e.Data, Param: cmid.Param{
			QPN: p.QPN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, RetryCount: p.RetryCount,
			RNRRetryCount: p.RNRRetryCount, SRQ: p.SRQ,
		}}
		if e.New != nil {
			x.New = managerID{e.New}
		}
		f(x)
	}
}

// managerID implements cmid.ID.
type managerID struct{ id *rdmacm.ID }

func (x managerID) Bind(at netip.AddrPort) error              { return x.id.Bind(at) }
func (x managerID) Listen(backlog int) error                  { return x.id.Listen(backlog) }
func (x managerID) ResolveAddr(src, dst netip.AddrPort) error { return x.id.ResolveAddr(src, dst) }
func (x managerID) ResolveRoute() error                       { return x.id.ResolveRoute() }

func toRDMACMParam(p cmid.Param) rdmacm.Param {
	return rdmacm.Param{
		QPN: p.QPN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, RetryCount: p.RetryCount,
		RNRRetryCount: p.RNRRetryCount, SRQ: p.SRQ,
	}
}

func (x managerID) Connect(p cmid.Param, data []byte) error {
	return x.id.Connect(toRDMACMParam(p), data)
}

// Adopt implements cmid.ID. After Adopt the request no longer counts towards the backlog of its listener.
func (x managerID) Adopt(f func(cmid.Event)) {
	x.id.SetEventFunc(translateEvents(f))
	x.id.LeaveBacklog()
}

func (x managerID) Accept(p cmid.Param, data []byte) error {
	return x.id.Accept(toRDMACMParam(p), data)
}
func (x managerID) Complete() error          { return x.id.Complete() }
func (x managerID) Reject(data []byte) error { return x.id.Reject(msg.ReasonConsumer, data) }
func (x managerID) Disconnect() error        { return x.id.Disconnect() }
func (x managerID) Destroy()                 { x.id.Destroy() }

func (x managerID) QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.AttrMask, error) {
	a, mask, err := x.id.QPAttr(to)
	g := a.AH.GRH
	return verbs.QPAttr{
		State: a.State, Access: a.AccessFlags, PKeyIndex: a.PKeyIndex, Port: a.Port, QKey: a.QKey,
		AH: verbs.AHAttr{
			GID: verbs.GID(g.DGID), SGIDIndex: int(g.SGIDIndex), Port: int(a.AH.Port), HopLimit: int(g.HopLimit),
			TrafficClass: g.TrafficClass,
			FlowLabel:    g.FlowLabel, SL: a.AH.SL,
		},
		PathMTU: verbs.MTU(a.PathMTU), DestQPN: a.DestQPN, RecvPSN: a.RQPSN, SendPSN: a.SQPSN, Timeout: a.Timeout,
		RetryCount: a.RetryCnt,
		RNRRetry:   a.RNRRetry, MinRNRTimer: a.MinRNRTimer, MaxReads: a.MaxRdAtomic, MaxPeerReads: a.MaxDestRdAtomic,
	}, mask, err
}

func (x managerID) View() (cmid.View, error) {
	v := x.id.View()
	return cmid.View{Local: v.Src, Remote: v.Dst, NodeGUID: v.GUID, Port: v.Port}, nil
}
