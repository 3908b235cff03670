package states

import (
	"errors"
	"testing"

	"verbena/internal/explore"
)

// uses is an object that two threads destroy, while two other threads refer to it for a time.
type uses struct {
	o         Object
	refs      int8
	inDriver  int8 // number of calls of the driver in progress that destroy the object
	gone      bool
	refusals  int8 // remaining refusals of the driver
	wrong     bool // the object was used or destroyed after its end
	destroyer [2]int8
	user      [2]int8
}

func (u uses) destroy(i int) []explore.Step[uses] {
	pc := &u.destroyer[i]
	switch *pc {
	case 0:
		var ok bool
		if u.o, ok = u.o.End(); !ok {
			*pc = 2
			return []explore.Step[uses]{{What: "may not destroy it", To: u}}
		}
		u.inDriver++
		u.wrong = u.wrong || u.gone
		*pc = 1
		return []explore.Step[uses]{{What: "makes the driver destroy it", To: u}}
	case 1:
		var list []explore.Step[uses]
		if u.refusals > 0 {
			x := u
			x.refusals--
			x.inDriver--
			x.o, _ = x.o.Refused()
			x.destroyer[i] = 0 // the thread tries again
			list = append(list, explore.Step[uses]{What: "is refused", To: x})
		}
		u.gone = true
		u.inDriver--
		u.o, _ = u.o.Ended()
		*pc = 2
		return append(list, explore.Step[uses]{What: "has destroyed it", To: u})
	}
	return nil
}

func (u uses) use(i int) []explore.Step[uses] {
	pc := &u.user[i]
	switch *pc {
	case 0:
		var ok bool
		if u.o, ok = u.o.Get(); !ok {
			*pc = 2
			return []explore.Step[uses]{{What: "may not refer to it", To: u}}
		}
		u.refs++
		u.wrong = u.wrong || u.gone
		*pc = 1
		return []explore.Step[uses]{{What: "refers to it", To: u}}
	case 1:
		u.o, _ = u.o.Put()
		u.refs--
		*pc = 2
		return []explore.Step[uses]{{What: "releases its reference", To: u}}
	}
	return nil
}

// TestExploreObject visits all states of an object.
func TestExploreObject(t *testing.T) {
	s := explore.System[uses]{
		Start: uses{refusals: 1},
		Check: func(u uses) error {
			switch {
			case u.wrong:
				return errors.New("the object is used after its end")
			case u.inDriver > 1:
				return errors.New("two concurrent calls of the driver destroy the object")
			case u.refs > 0 && (u.inDriver > 0 || u.gone):
				return errors.New("the object is destroyed while other threads refer to it")
			case u.o.Alive() && (u.inDriver > 0 || u.gone):
				return errors.New("Alive: got true for an object that is not alive")
			case !u.o.Alive() && u.inDriver == 0 && !u.gone:
				return errors.New("the state is ended for an object that has not ended")
			case u.o.Alive() && int8(u.o) != u.refs:
				return errors.New("the count of references is wrong")
			}
			return nil
		},
		End: func(u uses) error {
			if u.destroyer != [2]int8{2, 2} || u.user != [2]int8{2, 2} {
				return errors.New("a thread waits forever")
			}
			return nil
		},
	}
	for i := range 2 {
		s.Threads = append(s.Threads, func(u uses) []explore.Step[uses] {
			return u.destroy(i)
		}, func(u uses) []explore.Step[uses] { return u.use(i) })
	}
	r, err := s.Run(100_000)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
}
