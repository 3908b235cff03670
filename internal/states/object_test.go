package states

import (
	"errors"
	"testing"

	"verbena/internal/explore"
)

// sharedObject is an object that two threads destroy, while two other threads refer to it for a time.
type sharedObject struct {
	o         Object
	refs      int8
	inDriver  int8 // number of calls of the driver in progress that destroy the object
	gone      bool
	refusals  int8 // remaining refusals of the driver
	wrong     bool // the object was used or destroyed after its end
	destroyer [2]int8
	user      [2]int8
}

func (u sharedObject) destroyerSteps(i int) []explore.ThreadStep[sharedObject] {
	pc := &u.destroyer[i]
	switch *pc {
	case 0:
		var ok bool
		if u.o, ok = u.o.BeginDestroy(); !ok {
			*pc = 2
			return []explore.ThreadStep[sharedObject]{{What: "may not destroy it", To: u}}
		}
		u.inDriver++
		u.wrong = u.wrong || u.gone
		*pc = 1
		return []explore.ThreadStep[sharedObject]{{What: "makes the driver destroy it", To: u}}
	case 1:
		var list []explore.ThreadStep[sharedObject]
		if u.refusals > 0 {
			x := u
			x.refusals--
			x.inDriver--
			x.o, _ = x.o.Refused()
			x.destroyer[i] = 0 // the thread tries again
			list = append(list, explore.ThreadStep[sharedObject]{What: "is refused", To: x})
		}
		u.gone = true
		u.inDriver--
		u.o, _ = u.o.FinishDestroy()
		*pc = 2
		return append(list, explore.ThreadStep[sharedObject]{What: "has destroyed it", To: u})
	}
	return nil
}

func (u sharedObject) userSteps(i int) []explore.ThreadStep[sharedObject] {
	pc := &u.user[i]
	switch *pc {
	case 0:
		var ok bool
		if u.o, ok = u.o.Get(); !ok {
			*pc = 2
			return []explore.ThreadStep[sharedObject]{{What: "may not refer to it", To: u}}
		}
		u.refs++
		u.wrong = u.wrong || u.gone
		*pc = 1
		return []explore.ThreadStep[sharedObject]{{What: "refers to it", To: u}}
	case 1:
		u.o, _ = u.o.Put()
		u.refs--
		*pc = 2
		return []explore.ThreadStep[sharedObject]{{What: "releases its reference", To: u}}
	}
	return nil
}

// TestObjectStatesObeyRules visits all states of an object.
func TestObjectStatesObeyRules(t *testing.T) {
	s := explore.System[sharedObject]{
		Start: sharedObject{refusals: 1},
		Check: func(u sharedObject) error {
			switch {
			case u.wrong:
				return errors.New("the object is used after its end")
			case u.inDriver > 1:
				return errors.New("two concurrent calls of the driver destroy the object")
			case u.refs > 0 && (u.inDriver > 0 || u.gone):
				return errors.New("the object is destroyed while other threads refer to it")
			case u.o.IsAlive() && (u.inDriver > 0 || u.gone):
				return errors.New("Alive: got true for an object that is not alive")
			case !u.o.IsAlive() && u.inDriver == 0 && !u.gone:
				return errors.New("the state is ended for an object that has not ended")
			case u.o.IsAlive() && int8(u.o) != u.refs:
				return errors.New("the count of references is wrong")
			}
			return nil
		},
		End: func(u sharedObject) error {
			if u.destroyer != [2]int8{2, 2} || u.user != [2]int8{2, 2} {
				return errors.New("a thread waits forever")
			}
			return nil
		},
	}
	for i := range 2 {
		s.Threads = append(s.Threads, func(u sharedObject) []explore.ThreadStep[sharedObject] {
			return u.destroyerSteps(i)
		}, func(u sharedObject) []explore.ThreadStep[sharedObject] { return u.userSteps(i) })
	}
	r, err := s.Run(100_000)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
}
