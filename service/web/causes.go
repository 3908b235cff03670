package web

import "verbena/internal/ctl"

// maxCauses is the number of causes on a page.
const maxCauses = 256

// CausesOf returns a function for Options.Causes that asks a source for the causes of failures (verbena explain).
func CausesOf(s Source) func() []Cause {
	return func() (list []Cause) {
		r, err := s.Do(&ctl.Request{Op: ctl.OpExplain, Explain: &ctl.Explain{Last: maxCauses}})
		if err != nil {
			return nil
		}
		for i := range r.Causes {
			c := &r.Causes[len(r.Causes)-1-i]
			list = append(list, Cause{Time: c.Time, Device: c.Device, QP: c.QP, Text: cleanText(c.String()),
				Remedy: cleanText(c.Remedy)})
		}
		return list
	}
}
