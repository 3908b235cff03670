package vet

import (
	"golang.org/x/tools/go/ssa"
)

// sync.Cond.Wait releases one lock while it waits: the L of its Cond. All other locks of the thread stay held. The lock
// flow therefore does not contain L at the wait. If the callers of a function must hold L, the same applies to the
// calls of the function.

const condWait = "(*sync.Cond).Wait"

// waitLock returns the lock that a call of sync.Cond.Wait releases. It returns nil for another call, and for a Cond
// with an unknown lock.
func (lt *lockTable) waitLock(f *function, at ssa.CallInstruction) *lock {
	common := at.Common()
	if fn := common.StaticCallee(); fn == nil || fn.String() != condWait {
		return nil
	}
	if l, ok := lt.waitLocks[at]; ok {
		return l
	}
	lt.waitLocks[at] = lt.condLock(common.Args[0])
	return lt.waitLocks[at]
}

// condLock returns the class of the lock of a Cond, or nil if it is unknown.
func (lt *lockTable) condLock(cond ssa.Value) (l *lock) {
	for _, o := range lt.graph.traces.origins(cond, nil, nil) {
		var lockers []ssa.Value
		switch v := o.v.(type) {
		case *ssa.Const:
			continue
		case *ssa.Call:
			if fullName(v.Call.StaticCallee()) == "sync.NewCond" {
				lockers = v.Call.Args
			}
		default:
			lockers = lt.condFieldStores()[variableAt(v)]
		}
		if len(lockers) == 0 {
			return nil
		}
		for _, v := range lockers {
			k := lt.lockAt(lt.graph.parentOf(v), v)
			if k != nil && k.class != nil {
				k = k.class
			}
			if k == nil || l != nil && k != l {
				return nil
			}
			l = k
		}
	}
	return l
}

// condFieldStores returns the values that the program stores in the L of a Cond, indexed by the field or variable that
// contains the Cond.
func (lt *lockTable) condFieldStores() map[any][]ssa.Value {
	if lt.conds != nil {
		return lt.conds
	}
	lt.conds = map[any][]ssa.Value{}
	for _, f := range lt.graph.order {
		if f.base != nil {
			continue
		}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				s, ok := at.(*ssa.Store)
				if !ok {
					continue
				}
				if a, ok := s.Addr.(*ssa.FieldAddr); ok && isNamed(a.X.Type(), "sync.Cond") {
					of := a.X
					if v := pointedVariable(of); v != nil {
						lt.conds[v] = append(lt.conds[v], s.Val)
					}
					if v := variableAt(of); v != nil && v != pointedVariable(of) {
						lt.conds[v] = append(lt.conds[v], s.Val)
					}
				}
			}
		}
	}
	return lt.conds
}

// isUnknownCondWait reports whether an instruction is a wait for a Cond with an unknown lock.
func (lt *lockTable) isUnknownCondWait(at ssa.Instruction, what string) bool {
	if what != "calls "+condWait {
		return false
	}
	c, ok := at.(ssa.CallInstruction)
	return !ok || lt.waitLocks[c] == nil
}

// endsInUnknownWait reports whether the path of a function to an effect ends in a wait for a Cond with an unknown lock.
func (lt *lockTable) endsInUnknownWait(e *effect, f *function) bool {
	for n := 0; f != nil && n < 60; n++ {
		c := e.of[f]
		if c == nil {
			return false
		}
		if c.next == nil {
			return lt.isUnknownCondWait(c.at, c.what)
		}
		f = c.next
	}
	return false
}
