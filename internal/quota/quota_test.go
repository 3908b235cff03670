package quota

import "testing"

// Each refusal is reported.
func TestOnRefusal(t *testing.T) {
	l := New(Limits{QPs: {PerUser: 2}})
	var got []*Error
	l.OnRefusal(func(e *Error) { got = append(got, e) })
	u := l.User(7)
	if err := u.Take(QPs, 2); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	err := u.Take(QPs, 1)
	if len(got) != 1 || err != error(got[0]) || got[0].UID != 7 || got[0].Held != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}
