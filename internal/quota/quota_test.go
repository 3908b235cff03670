package quota

import "testing"

// TestOnRefusalIsCalledPerRefusal tests that OnRefusal's function is called for each refusal.
func TestOnRefusalIsCalledPerRefusal(t *testing.T) {
	l := New(Limits{QPs: {PerUser: 2}})
	var got []*LimitError
	l.OnRefusal(func(e *LimitError) { got = append(got, e) })
	u := l.User(7)
	if err := u.Charge(QPs, 2); err != nil || len(got) != 0 {
		t.Errorf("Take below the limit: got refusals %v and error %v, want none", got, err)
	}
	err := u.Charge(QPs, 1)
	if len(got) != 1 || err != error(got[0]) || got[0].User.UID != 7 || got[0].Held != 2 {
		t.Errorf("Take beyond the limit: got refusals %v and error %v, want one refusal", got, err)
	}
}

// TestUserMaximumIsExact tests that a single user can take the amount that UserMaximum returns, and no more.
func TestUserMaximumIsExact(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		want  uint64
	}{
		{Limit{}, 0},
		{Limit{PerUser: 100}, 100},
		{Limit{PerUser: 100, Total: 400}, 100},
		{Limit{PerUser: 400, Total: 400}, 300},
		{Limit{Total: 400}, 300},
	} {
		if got := c.limit.UserMaximum(); got != c.want {
			t.Errorf("%+v.Most: got %d, want %d", c.limit, got, c.want)
		}
		if c.want == 0 {
			continue
		}
		var limits Limits
		limits[QPs] = c.limit
		u := New(limits).User(1)
		if err := u.Charge(QPs, c.want); err != nil {
			t.Errorf("%+v: Take of %d: got %v, want success", c.limit, c.want, err)
		}
		if err := u.Charge(QPs, 1); err == nil {
			t.Errorf("%+v: Take of %d: got success, want an error", c.limit, c.want+1)
		}
	}
}
