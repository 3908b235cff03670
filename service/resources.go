package service

import (
	"os"

	"verbena/uverbs"
)

// ContextInfo is what `res show` tells of one open device file.
type ContextInfo struct {
	Device  string `json:"device"`
	File    string `json:"file"`
	PID     int    `json:"pid"`
	Process string `json:"process"`
	UID     int    `json:"uid"`
	Zombie  bool   `json:"zombie,omitempty"` // its device is gone
	// PinnedBytes are charged to the process, for all its contexts together.
	PinnedBytes uint64    `json:"pinned_bytes"`
	PDs         int       `json:"pds"`
	AHs         int       `json:"ahs"`
	MWs         int       `json:"mws"`
	MRs         []MRInfo  `json:"mrs"`
	CQs         []CQInfo  `json:"cqs"`
	QPs         []QPInfo  `json:"qps"`
	SRQs        []SRQInfo `json:"srqs"`
	XRCDs       int       `json:"xrcds"`
}

// MRInfo is a memory region.
type MRInfo struct {
	LKey   uint32 `json:"lkey"`
	RKey   uint32 `json:"rkey"`
	IOVA   uint64 `json:"iova"`
	Length uint64 `json:"length"`
}

// CQInfo is a completion queue.
type CQInfo struct {
	Entries int  `json:"entries"`
	Channel bool `json:"channel"`
}

// QPInfo is a queue pair.
type QPInfo struct {
	Num   uint32 `json:"num"`
	Type  string `json:"type"`
	State string `json:"state"`
}

// SRQInfo is a shared receive queue.
type SRQInfo struct {
	Num   uint32 `json:"num"`
	Type  string `json:"type"` // BASIC or XRC
	MaxWR uint32 `json:"max_wr"`
}

// Resources lists what programs hold, by device and process.
func (s *Service) Resources() []ContextInfo {
	list := []ContextInfo{}
	for _, c := range s.uverbs.Resources() {
		list = append(list, contextInfo(&c))
	}
	return list
}

func contextInfo(c *uverbs.ContextInfo) ContextInfo {
	r := ContextInfo{
		Device: c.Device, File: c.File, PID: c.PID, Process: c.ProcessName, UID: c.UID, Zombie: c.Zombie,
		PinnedBytes: c.PinnedPages * uint64(os.Getpagesize()), PDs: len(c.PDs), AHs: len(c.AHs), MWs: len(c.MWs),
		MRs: []MRInfo{}, CQs: []CQInfo{}, QPs: []QPInfo{}, SRQs: []SRQInfo{}, XRCDs: len(c.XRCDs),
	}
	for _, m := range c.MRs {
		r.MRs = append(r.MRs, MRInfo{LKey: m.LKey, RKey: m.RKey, IOVA: m.IOVA, Length: m.Length})
	}
	for _, q := range c.CQs {
		r.CQs = append(r.CQs, CQInfo{Entries: q.Entries, Channel: q.Channel})
	}
	for _, q := range c.QPs {
		r.QPs = append(r.QPs, QPInfo{Num: q.Num, Type: q.Type.String(), State: q.State.String()})
	}
	for _, q := range c.SRQs {
		typ := "BASIC"
		if q.XRC {
			typ = "XRC"
		}
		r.SRQs = append(r.SRQs, SRQInfo{Num: q.Num, Type: typ, MaxWR: q.MaxWR})
	}
	return r
}

// StatInfo are the counters of a device, by the names that programs see in its hw_counters.
type StatInfo struct {
	Dev      string            `json:"dev"`
	Counters map[string]uint64 `json:"counters"`
}

// Stats reads the counters of one device, or of all if dev is empty.
func (s *Service) Stats(dev string) ([]StatInfo, error) {
	links, err := s.named(dev)
	list := []StatInfo{}
	for _, l := range links {
		s.mu.Lock()
		d := l.dev
		s.mu.Unlock()
		list = append(list, StatInfo{Dev: l.spec.Name, Counters: d.Stats()})
	}
	return list, err
}
