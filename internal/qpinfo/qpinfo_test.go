package qpinfo

import "testing"

func TestFlowsString(t *testing.T) {
	for _, c := range []struct {
		f    *Flows
		want string
	}{
		{nil, ""},
		{&Flows{}, ""},
		{&Flows{In: 2}, "flows: 0 out, 0 of them busy, 2 in"},
		{&Flows{Out: 3, Busy: 1, Waiting: 4}, "flows: 3 out, 1 of them busy, 0 in; packets waiting for receives: 4"},
	} {
		if got := c.f.String(); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.f, got, c.want)
		}
	}
}
