package service

import (
	"fmt"
	"syscall"

	"verbena/driver/rxe/wire"
)

// FaultRule disturbs what a device sends.
type FaultRule struct {
	Dev string `json:"dev"`
	wire.Rule
}

// FaultRuleState is a rule and what it has done.
type FaultRuleState struct {
	Dev string `json:"dev"`
	wire.RuleState
}

// FaultAdd lets a rule take effect. While a device has rules, what it sends takes the full path.
func (s *Service) FaultAdd(r FaultRule) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.find(r.Dev)
	if l == nil {
		return s.noLink(r.Dev)
	}
	if err := l.faults.Add(r.Rule); err != nil {
		return fmt.Errorf("fault add: %w: %w", err, syscall.EINVAL)
	}
	s.configured = true
	l.setShortcut()
	return nil
}

// FaultClear removes the rules of one device, or of all if dev is empty.
func (s *Service) FaultClear(dev string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	links, err := s.named(dev)
	for _, l := range links {
		l.faults.Clear()
		l.setShortcut()
	}
	return err
}

// Faults lists the rules of one device, or of all if dev is empty, and what they have done.
func (s *Service) Faults(dev string) ([]FaultRuleState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	links, err := s.named(dev)
	list := []FaultRuleState{}
	for _, l := range links {
		for _, r := range l.faults.List() {
			list = append(list, FaultRuleState{Dev: l.spec.Name, RuleState: r})
		}
	}
	return list, err
}

// named is the link of that name, or all links if the name is empty.
func (s *Service) named(dev string) ([]*link, error) {
	if dev == "" {
		return s.links, nil
	}
	l := s.find(dev)
	if l == nil {
		return nil, s.noLink(dev)
	}
	return []*link{l}, nil
}
