package fault

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Share is a probability from 0 to 1.
type Share float64

// ParseShare parses a share, written as 1% or as 0.01.
func ParseShare(text string) (Share, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a share: write 1%% or 0.01", text)
	}
	if percent {
		v /= 100
	}
	if !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("%q is not a share between 0 and 100%%", text)
	}
	return Share(v), nil
}

const (
	maxDelay = time.Minute
	maxQPN   = 1<<24 - 1
)

// ErrRule is wrapped by the errors of [Rule.Validate].
var ErrRule = errors.New("bad fault rule")

// Validate returns an error for invalid values. Validate's error wraps [ErrRule].
func (r *Rule) Validate() error {
	active, alone := 0, 0
	for _, k := range FlagKinds() {
		if err := checkValueByType(k.Name, k.value(r)); err != nil {
			return err
		}
		if k.isInRule(r) {
			active++
			if k.Alone {
				alone++
			}
		}
	}
	if err := checkValueByType("hold", r.Hold); err != nil {
		return err
	}
	if err := r.validateMatches(); err != nil {
		return err
	}
	switch {
	case alone > 0 && active > 1:
		return fmt.Errorf("%w: %s need separate rules", ErrRule, strings.Join(kindNames(kinds, func(k *Kind) bool {
			return k.Alone
		}), " and "))
	case r.QP > maxQPN:
		return fmt.Errorf("%w: queue pair number %#x has more than 24 bits", ErrRule, r.QP)
	case r.Behind < 0:
		return fmt.Errorf("%w: cannot be behind %d packets", ErrRule, r.Behind)
	case active == 0:
		return fmt.Errorf("%w: the rule has no effect: add one of %s", ErrRule, strings.Join(kindNames(FlagKinds(),
			func(*Kind) bool {
				return true
			}), ", "))
	}
	return nil
}

// checkValueByType checks a value by its type.
func checkValueByType(name string, v any) error {
	switch v := v.(type) {
	case Share:
		if !(v >= 0 && v <= 1) {
			return fmt.Errorf("%w: %s %v is not a probability from 0 to 1", ErrRule, name, v)
		}
	case time.Duration:
		if v < 0 || v > maxDelay {
			return fmt.Errorf("%w: %s %v is not from 0 to %v", ErrRule, name, v, maxDelay)
		}
	}
	return nil
}

// HasEffect reports whether the rule has any effect.
func (r *Rule) HasEffect() bool {
	for i := range kinds {
		if kinds[i].isInRule(r) {
			return true
		}
	}
	return false
}

// String formats the rule, for example as "drop 0.01 queue pair 17".
func (r Rule) String() string {
	var w []string
	word := func(show bool, format string, args ...any) {
		if show {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	for i := range kinds {
		k := &kinds[i]
		switch v := k.value(&r).(type) {
		case bool:
			word(v, "%s", k.Name)
		default:
			word(k.isInRule(&r), "%s %v", k.Name, v)
		}
		if k.Name == "reorder" && k.isInRule(&r) {
			word(r.Behind > 0, "behind %d", r.Behind)
			word(r.Hold > 0, "hold %v", r.Hold)
		}
	}
	for i := range matches {
		m := &matches[i]
		v := m.value(&r)
		word(v != nil, "%s %v", cmp.Or(m.text, m.Name), v)
	}
	word(r.Skip > 0, "after %d", r.Skip)
	word(r.Limit > 0, "for %d", r.Limit)
	word(r.Seed > 0, "seed %d", r.Seed)
	return strings.Join(w, " ")
}

// RuleState is an active rule with its counters.
type RuleState struct {
	ID int `json:"id"`
	Rule
	RuleCounts
}

// MaxHitAt limits the length of [RuleCounts.HitAt].
const MaxHitAt = 64
