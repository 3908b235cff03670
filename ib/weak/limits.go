package weak

import (
	"fmt"
	"syscall"

	"verbena/ib"
)

// adapterLimits are limits of an adapter below those of the device.
type adapterLimits struct {
	choice           Choice
	sge              uint32 // elements of a send
	inline, datagram uint32 // bytes of inline data; of a datagram (UD)
	reads            uint8  // outstanding READs and atomic operations of a queue pair; 0: unlimited
}

// limitsOfAdapters has a row for each choice of OptIn. The rows of Choices name the sources.
var limitsOfAdapters = []adapterLimits{
	{LimitsEFA, 2, 32, 32, 0},
	{LimitsMLX5, 30, 988, 512, 16},
	{LimitsBNXT, 6, 96, 96, 126},
}

// CheckCap returns EINVAL if requested capacities exceed those of a chosen adapter.
func (s Set) CheckCap(t ib.QPType, c *ib.QPCap) error {
	for _, l := range limitsOfAdapters {
		if !s.Has(l.choice) {
			continue
		}
		inline := l.inline
		if t == ib.QPTypeUD {
			inline = l.datagram
		}
		for _, x := range []struct {
			what        string
			asked, most uint32
		}{{"gather elements", c.MaxSendSGE, l.sge}, {"bytes inline", c.MaxInlineData, inline}} {
			if x.asked > x.most {
				return fmt.Errorf("%s: %d %s, at most %d: %w", Choices[l.choice].Name, x.asked, x.what, x.most, syscall.EINVAL)
			}
		}
	}
	return nil
}

// checkReads returns EINVAL if the outstanding READs of an attribute exceed those of a chosen adapter.
func (s Set) checkReads(attr *ib.QPAttr, mask ib.QPAttrMask) error {
	for _, l := range limitsOfAdapters {
		if !s.Has(l.choice) || l.reads == 0 {
			continue
		}
		for _, x := range []struct {
			bit   ib.QPAttrMask
			asked uint8
		}{{ib.QPAttrMaxRdAtomic, attr.MaxRdAtomic}, {ib.QPAttrMaxDestRdAtomic, attr.MaxDestRdAtomic}} {
			if mask&x.bit != 0 && x.asked > l.reads {
				return fmt.Errorf("%s: %d outstanding READs, at most %d: %w", Choices[l.choice].Name, x.asked, l.reads,
					syscall.EINVAL)
			}
		}
	}
	return nil
}
