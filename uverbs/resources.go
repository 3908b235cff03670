package uverbs

import (
	"cmp"
	"slices"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/states"
)

// ContextInfo describes the objects of an open file. (rdma resource show)
type ContextInfo struct {
	Device      string // name in the midlayer, such as rxe0
	File        string // such as uverbs0
	PID         int
	ProcessName string
	UID         int
	Owner       quota.ID // the charged user
	// Zombie is set if the device has been removed and the objects are only handles.
	Zombie bool
	// Busy is set while the context is being ended. The objects of a busy context are unknown.
	Busy bool
	// PinnedPages is the number of pages that the process's account has pinned, for all its files together.
	PinnedPages uint64

	// The objects are in creation order.
	PDs   []pdInfo
	MRs   []mrInfo
	MWs   []mwInfo
	CQs   []cqInfo
	QPs   []qpInfo
	AHs   []ahInfo
	SRQs  []srqInfo
	XRCDs []xrcdInfo
}

// pdInfo is a protection domain.
type pdInfo struct {
	Handle uint32
	Uses   int // number of objects in the domain
}

// mrInfo is a registered region.
type mrInfo struct {
	Handle, PD uint32
	LKey, RKey uint32
	IOVA       uint64
	Length     uint64 // bytes
	Pages      uint64 // number of charged pages
}

// mwInfo is a memory window.
type mwInfo struct {
	Handle, PD uint32
	RKey       uint32
	Type       ib.MWType
}

// cqInfo is a completion queue.
type cqInfo struct {
	Handle  uint32
	Entries int
	Channel bool // the queue has a completion channel
	Uses    int  // number of queues that complete on the CQ
}

// qpInfo is a queue pair.
type qpInfo struct {
	Handle  uint32
	Num     uint32
	PD      uint32 // handle; 0 for an XRC target
	SRQ     uint32 // handle, or 0 for none
	Type    ib.QPType
	State   ib.QPState
	DestNum uint32 // number of the peer
	RQPSN   uint32
	SQPSN   uint32
}

// ahInfo is an address handle.
type ahInfo struct{ Handle uint32 }

// srqInfo is a shared receive queue.
type srqInfo struct {
	Handle uint32
	PD     uint32 // handle
	CQ     uint32 // handle of the completion queue; for an XRC queue
	Num    uint32 // number for XRC senders
	XRC    bool
	MaxWR  uint32 // capacity in receives
}

// xrcdInfo is an open XRC domain.
type xrcdInfo struct{ Handle uint32 }

// Resources describes the objects of programs, by device and process. Zombies of former devices are last. Resources may
// sleep.
func (s *Server) Resources() []ContextInfo {
	s.mu.Lock()
	gone := slices.Clone(s.gone)
	s.mu.Unlock()
	var infos []ContextInfo
	for _, d := range slices.Concat(s.Devices(), gone) {
		files := d.attachedFiles()
		slices.SortFunc(files, func(a, b *File) int { return cmp.Compare(a.proc.PID(), b.proc.PID()) })
		for _, f := range files {
			infos = append(infos, f.info())
		}
	}
	return infos
}

// Processes returns the processes that have opened the device with a name, one for each context that is no zombie. It
// may not sleep.
func (s *Server) Processes(name string) (list []Process) {
	for _, d := range s.Devices() {
		if d.ib.Name() != name {
			continue
		}
		for _, f := range d.attachedFiles() {
			list = append(list, f.proc)
		}
	}
	return list
}

// info describes the objects of the file. info omits objects that are being created or destroyed. info may sleep, but
// does not wait for the process.
func (f *File) info() ContextInfo {
	state := f.contextState()
	info := ContextInfo{
		Device:      f.dev.ib.Name(),
		File:        f.dev.Name(),
		PID:         f.proc.PID(),
		ProcessName: f.proc.Name(),
		UID:         f.proc.UID(),
		Owner:       f.proc.User().ID(),
		Zombie:      state == states.ContextZombie,
		PinnedPages: f.proc.Account().Pages(),
	}
	if !f.life.TryRLock() {
		info.Busy = true
		return info
	}
	defer f.life.RUnlock()
	if state == states.ContextClosed {
		return info
	}
	for o := range f.objects.all() {
		if o.users.Load() == exclusiveUse {
			continue
		}
		switch r := o.res.(type) {
		case *pdObject:
			info.PDs = append(info.PDs, pdInfo{o.handle, r.Uses()})
		case *mrObject:
			m := mrInfo{Handle: o.handle, PD: r.pd, LKey: r.LKey(), RKey: r.RKey()}
			m.IOVA, m.Length, m.Pages = r.Region().IOVA(), r.Region().Len(), r.Region().Pages()
			info.MRs = append(info.MRs, m)
		case *mwObject:
			info.MWs = append(info.MWs, mwInfo{Handle: o.handle, PD: r.pd, RKey: r.RKey(), Type: r.Type()})
		case *cqObject:
			info.CQs = append(info.CQs, cqInfo{o.handle, r.Entries(), r.channel != nil, r.Uses()})
		case *qpObject:
			q := qpInfo{Handle: o.handle, Num: r.Num(), PD: r.pd, SRQ: r.srq, Type: r.Type(), State: ib.QPErr}
			if !o.gone {
				a := r.Peek() // Query would block while the program's memory does not respond
				q.State, q.DestNum, q.RQPSN, q.SQPSN = a.State, a.DestQPN, a.RQPSN, a.SQPSN
			}
			info.QPs = append(info.QPs, q)
		case *ahObject:
			info.AHs = append(info.AHs, ahInfo{o.handle})
		case *srqObject:
			q := srqInfo{Handle: o.handle, PD: r.pd, CQ: r.cq, Num: r.Num(), XRC: r.xrcd != nil, MaxWR: r.Init().Attr.MaxWR}
			if !o.gone {
				if a, err := r.Query(); err == nil {
					q.MaxWR = a.MaxWR
				}
			}
			info.SRQs = append(info.SRQs, q)
		case *xrcdObject:
			info.XRCDs = append(info.XRCDs, xrcdInfo{o.handle})
		}
	}
	slices.Reverse(info.PDs)
	slices.Reverse(info.MRs)
	slices.Reverse(info.MWs)
	slices.Reverse(info.CQs)
	slices.Reverse(info.QPs)
	slices.Reverse(info.AHs)
	slices.Reverse(info.SRQs)
	slices.Reverse(info.XRCDs)
	return info
}
