package modeltest

import (
	"slices"
	"time"

	"verbena/ib"
)

const inlineFlag = ib.SendInline

// shortenFailure removes calls of a failing run, and simplifies the remaining ones, as long as the run still fails.
func shortenFailure(make DeviceFactory, f *RunFailure, runs int) *RunFailure {
	begin := time.Now()
	hasty := func() (TestedDevice, func() error) {
		t, end := make()
		if !t.Virtual {
			t.Timeout = min(t.Timeout, 100*time.Millisecond)
		}
		return t, end
	}
	try := func(calls []call) bool {
		if runs <= 0 || !f.virtual && time.Since(begin) > 5*time.Second {
			runs = 0
			return false
		}
		runs--
		g := runOnce(hasty, func(x *modelRunner) ([]call, error) { return replayCalls(x, calls) })
		if g == nil {
			return false
		}
		g.Seed, g.Drawn = f.Seed, f.Drawn
		f = g
		return true
	}
	for n := max(1, len(f.calls)/2); n > 0 && runs > 0; {
		found := false
		for at := len(f.calls) - n; at > -n; at -= n {
			from, to := max(at, 0), min(at+n, len(f.calls))
			if from < to && try(slices.Delete(slices.Clone(f.calls), from, to)) {
				found = true
			}
		}
		if !found || n > 1 {
			n /= 2
		}
	}
	for changed := true; changed && runs > 0; {
		changed = false
		for i := 0; i < len(f.calls); i++ {
			s, ok := f.calls[i].(interface{ simplerCalls() []call })
			if !ok {
				continue
			}
			for _, c := range s.simplerCalls() {
				calls := slices.Clone(f.calls)
				calls[i] = c
				if try(calls) {
					changed = true
					break
				}
			}
			if i >= len(f.calls) {
				break
			}
		}
	}
	return f
}

// simplerCalls returns slightly simpler calls.
func (c postSend) simplerCalls() (list []call) {
	if len(c.list) > 1 {
		for i := range c.list {
			list = append(list, postSend{c.qp, slices.Delete(slices.Clone(c.list), i, i+1)})
		}
	}
	for i, s := range c.list {
		for _, t := range s.simplerSends() {
			sends := slices.Clone(c.list)
			sends[i] = t
			list = append(list, postSend{c.qp, sends})
		}
	}
	return list
}

func (s sendRequest) simplerSends() (list []sendRequest) {
	for i := range 4 {
		if s.flags&(1<<i) != 0 && (1<<i != int(inlineFlag) || len(s.inline) == 0) {
			t := s
			t.flags &^= 1 << i
			list = append(list, t)
		}
	}
	if n := len(s.inline); n > 0 && s.flags&inlineFlag != 0 {
		t := s
		t.inline = s.inline[:n/2]
		list = append(list, t)
	}
	for _, l := range simplerLists(s.list) {
		t := s
		t.list = l
		list = append(list, t)
	}
	return list
}

func simplerLists(e []sgElement) (list [][]sgElement) {
	for i := range e {
		if len(e) > 1 {
			list = append(list, slices.Delete(slices.Clone(e), i, i+1))
		}
		for _, n := range []uint32{0, 1, e[i].len / 2, e[i].len - 1} {
			if n < e[i].len {
				l := slices.Clone(e)
				l[i].len = n
				list = append(list, l)
			}
		}
	}
	return list
}

// simplerCalls returns slightly simpler calls.
func (c postRecv) simplerCalls() (list []call) {
	for i, r := range c.list {
		if len(c.list) > 1 {
			list = append(list, postRecv{c.on, c.shared, slices.Delete(slices.Clone(c.list), i, i+1)})
		}
		for _, l := range simplerLists(r.list) {
			recvs := slices.Clone(c.list)
			recvs[i].list = l
			list = append(list, postRecv{c.on, c.shared, recvs})
		}
	}
	return list
}

// simplerCalls returns a simpler registration.
func (c regMR) simplerCalls() (list []call) {
	if c.iova != 0 {
		d := c
		d.iova = 0
		list = append(list, d)
	}
	if c.at.len > 4096 {
		d := c
		d.at.len /= 2
		list = append(list, d)
	}
	return list
}
