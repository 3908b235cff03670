package service

import (
	"fmt"
	"syscall"

	"verbena/internal/ctl"
	"verbena/internal/fault"
)

// addFault adds a fault rule and returns its ID, which is unique in the service. While a device has rules, all its
// packets take the full path.
//
// A rule for a verb applies to the programs of one device, or of all devices if the rule names none.
func (s *Service) addFault(r ctl.FaultRule) (id int, err error) {
	if r.Verb != nil {
		return s.addVerbFault(&r)
	}
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	l := s.links.find(r.Dev)
	if l == nil {
		return 0, s.links.noLinkError(r.Dev)
	}
	if len(l.faults.List()) >= maxFaultRules {
		return 0, fmt.Errorf("fault add: device %s: %w", r.Dev, errTooManyRules)
	}
	if err := l.faults.Add(r.Rule); err != nil {
		return 0, fmt.Errorf("fault add: %w: %w", err, syscall.EINVAL)
	}
	rules := l.faults.List()
	return rules[len(rules)-1].ID, nil
}

func (s *Service) addVerbFault(r *ctl.FaultRule) (id int, err error) {
	switch {
	case r.Rule != (fault.Rule{}):
		err = fmt.Errorf("a rule is for a verb or for packets: %w", syscall.EINVAL)
	case r.Dev != "":
		s.links.mu.Lock()
		if s.links.find(r.Dev) == nil {
			err = s.links.noLinkError(r.Dev)
		}
		s.links.mu.Unlock()
	}
	if err == nil {
		id, err = s.verbFaults.addRule(r.Dev, r.Verb)
	}
	if err != nil {
		return 0, fmt.Errorf("fault add: %w", err)
	}
	return id, nil
}

// clearFaults removes rules of one device, or of all devices if dev is empty: the rule with the ID, or all rules if the
// ID is 0.
func (s *Service) clearFaults(dev string, id int) error {
	links, err := s.links.linksNamed(dev)
	if err != nil {
		return err
	}
	if s.verbFaults.clearRules(dev, id) && id != 0 {
		return nil
	}
	for _, l := range links {
		switch {
		case id == 0:
			l.faults.Clear()
		case l.faults.Remove(id):
			return nil
		}
	}
	if id != 0 {
		return fmt.Errorf("fault clear: there is no rule %d; verbena fault show lists them: %w", id, syscall.ENOENT)
	}
	return nil
}

// listFaults lists the rules of one device, or of all devices if dev is empty, with their counters.
func (s *Service) listFaults(dev string) ([]ctl.FaultRuleState, error) {
	links, err := s.links.linksNamed(dev)
	list := []ctl.FaultRuleState{}
	for _, l := range links {
		for _, r := range l.faults.List() {
			list = append(list, ctl.FaultRuleState{Dev: l.spec.Name, ID: r.ID, Rule: r.Rule, RuleCounts: r.RuleCounts})
		}
	}
	if err == nil {
		for _, r := range s.verbFaults.listRules() {
			if dev == "" || r.Dev == dev || r.Dev == "" {
				list = append(list, r)
			}
		}
	}
	return list, err
}
