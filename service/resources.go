package service

import (
	"os"

	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/uverbs"
)

// listContexts lists the objects of programs by device and process, for the users for whom sees returns true.
// listContexts does not show keys and numbers of objects of other users.
func (s *Service) listContexts(sees func(quota.ID) bool) []ctl.ContextInfo {
	list := []ctl.ContextInfo{}
	for _, c := range s.uverbs.Resources() {
		if sees(c.Owner) {
			list = append(list, contextInfo(&c))
		}
	}
	return list
}

func contextInfo(c *uverbs.ContextInfo) ctl.ContextInfo {
	r := ctl.ContextInfo{
		Device: c.Device, File: c.File, PID: c.PID, Process: c.ProcessName, UID: c.UID, Container: c.Owner.Container,
		Zombie:      c.Zombie,
		PinnedBytes: c.PinnedPages * uint64(os.Getpagesize()), PDs: len(c.PDs), AHs: len(c.AHs), MWs: len(c.MWs),
		MRs: []ctl.MRInfo{}, CQs: []ctl.CQInfo{}, QPs: []ctl.QPInfo{}, SRQs: []ctl.SRQInfo{}, XRCDs: len(c.XRCDs),
	}
	for _, m := range c.MRs {
		r.MRs = append(r.MRs, ctl.MRInfo{LKey: m.LKey, RKey: m.RKey, IOVA: m.IOVA, Length: m.Length})
	}
	for _, q := range c.CQs {
		r.CQs = append(r.CQs, ctl.CQInfo{Handle: q.Handle, Entries: q.Entries, Channel: q.Channel})
	}
	for _, q := range c.QPs {
		r.QPs = append(r.QPs, ctl.QPInfo{Num: q.Num, Type: q.Type.String(), State: q.State.String()})
	}
	for _, q := range c.SRQs {
		typ := "BASIC"
		if q.XRC {
			typ = "XRC"
		}
		r.SRQs = append(r.SRQs, ctl.SRQInfo{Handle: q.Handle, Num: q.Num, Type: typ, MaxWR: q.MaxWR})
	}
	return r
}

// Stats reads the counters of one device, or of all devices if dev is empty: the counters of the driver, and event_*
// for asynchronous events.
func (s *Service) Stats(dev string) ([]ctl.StatInfo, error) {
	links, err := s.links.linksNamed(dev)
	list := []ctl.StatInfo{}
	for _, l := range links {
		s.links.mu.Lock()
		d := l.dev
		s.links.mu.Unlock()
		counters, events := d.Stats(), l.slot.Events()
		for _, e := range devEvents {
			counters["event_"+e.name] = events[e.typ]
		}
		list = append(list, ctl.StatInfo{Dev: l.spec.Name, Counters: counters})
	}
	return list, err
}
