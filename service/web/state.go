package web

import (
	"encoding/json"
	"strings"
	"time"
	"unicode"

	"verbena/internal/ctl"
)

// state is a message to the page: the state of the service at a time.
type state struct {
	Time     time.Time       `json:"time"`
	Error    string          `json:"error,omitempty"` // the reason for which the rest is missing
	Devices  []ctl.DevInfo   `json:"devices"`
	Links    []ctl.LinkInfo  `json:"links"`
	Stats    []ctl.StatInfo  `json:"stats"`
	QPs      []qpState       `json:"qps"`
	Programs []programState  `json:"programs"`
	Faults   []faultState    `json:"faults"`
	Causes   []Cause         `json:"causes"` // null without Options.Causes
	Scenario json.RawMessage `json:"scenario,omitempty"`
}

// qpState is a queue pair with the program that owns it.
type qpState struct {
	ctl.QPStatusInfo
	PID     int    `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
}

// programState is a program with a device that it has open.
type programState struct {
	Device  string `json:"device"`
	PID     int    `json:"pid"`
	UID     int    `json:"uid"`
	Program string `json:"program"`
	QPs     int    `json:"qps"`
	CQs     int    `json:"cqs"`
	MRs     int    `json:"mrs"`
	Pinned  uint64 `json:"pinned"` // bytes
	Zombie  bool   `json:"zombie,omitempty"`
}

// faultState is an active fault rule.
type faultState struct {
	ID     int    `json:"id"`
	Device string `json:"device,omitempty"`
	Text   string `json:"text"`
	Seen   uint64 `json:"seen"`
	Hit    uint64 `json:"hit"`
}

// takeState returns the state of the service as JSON. It may sleep.
func (p *page) takeState() []byte {
	s := state{Time: time.Now()}
	p.endTraces(s.Time.Add(-traceLease))
	if err := p.fillState(&s); err != nil {
		s = state{Time: s.Time, Error: cleanText(err.Error())}
	}
	if p.Scenario != nil {
		s.Scenario = p.Scenario.json()
	}
	b, err := json.Marshal(&s)
	if err != nil {
		p.Log.Error("state for the web page", "err", err)
		return []byte("{}")
	}
	return b
}

func (p *page) fillState(s *state) error {
	answers := map[ctl.Op]*ctl.Response{}
	for _, op := range []ctl.Op{ctl.OpDevShow, ctl.OpLinkShow, ctl.OpStatShow, ctl.OpResShow, ctl.OpQPShow,
		ctl.OpFaultShow} {
		r, err := p.Source.Do(&ctl.Request{Op: op})
		if err != nil {
			return err
		}
		answers[op] = r
	}
	s.Devices, s.Links = answers[ctl.OpDevShow].Devs, answers[ctl.OpLinkShow].Links
	s.Stats = answers[ctl.OpStatShow].Stats
	type key struct {
		device string
		num    uint32
	}
	owners := map[key]*ctl.ContextInfo{}
	for i := range answers[ctl.OpResShow].Contexts {
		c := &answers[ctl.OpResShow].Contexts[i]
		c.Process = cleanText(c.Process)
		s.Programs = append(s.Programs, programState{Device: c.Device, PID: c.PID, UID: c.UID, Program: c.Process,
			QPs: len(c.QPs), CQs: len(c.CQs), MRs: len(c.MRs), Pinned: c.PinnedBytes, Zombie: c.Zombie})
		if c.Zombie { // the numbers may belong to other queue pairs now
			continue
		}
		for _, q := range c.QPs {
			owners[key{c.Device, q.Num}] = c
		}
	}
	for _, q := range answers[ctl.OpQPShow].QPs {
		x := qpState{QPStatusInfo: q}
		if c := owners[key{q.Device, q.Num}]; c != nil {
			x.PID, x.Program = c.PID, c.Process
		}
		s.QPs = append(s.QPs, x)
	}
	for _, f := range answers[ctl.OpFaultShow].Faults {
		text := f.Rule.String()
		if f.Verb != nil {
			text = f.Verb.String()
		}
		s.Faults = append(s.Faults, faultState{ID: f.ID, Device: f.Dev, Text: cleanText(text), Seen: f.Seen, Hit: f.Hit})
	}
	if p.Causes != nil {
		s.Causes = append([]Cause{}, p.Causes()...)
	}
	return nil
}

// cleanText replaces characters that are not printable. They could reverse the direction of the text around a name.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
