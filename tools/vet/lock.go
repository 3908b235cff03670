package vet

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// lock is a class of locks. A class is a variable, or a field of all values of a type. If the analysis
// distinguishes the places of the type, the class has a part for each place. In this case the class itself stands
// for a lock at an unknown place.
type lock struct {
	name  string
	key   string
	class *lock // for a part: its class
	parts []*lock

	sleepy *heldSleep // a sleeping operation across which the lock is held, or nil
	// The program directive of the lock, or nil; a waiter for the lock then waits only for the memory of its own
	// program.
	program *Escape
	sites   []lockSite
	hold    bool // whether this is no lock, but a hold of callbacks (hold.go)
	local   bool // whether only the function that begins the hold may end it
}

// heldSleep is a position at which a lock is held across a sleeping operation.
type heldSleep struct {
	in   *function
	pos  token.Pos
	what string
	plug bool // whether registration or removal holds the lock
}

type lockSite struct {
	in *function
	at ssa.CallInstruction
	l  *lock // nil means an unknown lock
}

// overlaps reports whether two locks may be the same lock.
func (l *lock) overlaps(k *lock) bool { return l == k || l.class == k || k.class == l }

// findHeldSleep returns a position at which a lock, or a lock that may be the same, is held across a sleeping
// operation, or nil.
func (l *lock) findHeldSleep() *heldSleep {
	if l.sleepy != nil {
		return l.sleepy
	}
	if l.class != nil {
		return l.class.sleepy
	}
	for _, k := range l.parts {
		if k.sleepy != nil {
			return k.sleepy
		}
	}
	return nil
}

// lockSet is a set of locks.
type lockSet map[*lock]bool

func (s lockSet) clone() lockSet {
	c := make(lockSet, len(s))
	for l := range s {
		c[l] = true
	}
	return c
}

// findOverlap returns the lock of a set that may be the wanted lock, or nil.
func (s lockSet) findOverlap(l *lock) *lock {
	if s[l] {
		return l
	}
	if l.class == nil && len(l.parts) == 0 {
		return nil
	}
	for _, k := range s.sortedLocks() {
		if k.overlaps(l) {
			return k
		}
	}
	return nil
}

func (s lockSet) sortedLocks() []*lock {
	var list []*lock
	for l := range s {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *lock) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.key, b.key))
	})
	return list
}

type lockCallKind uint8

const (
	noLockCall lockCallKind = iota
	lockCalled
	unlockCalled
	tryCalled
)

// lockCallKindOf returns the lock operation that a function performs.
func lockCallKindOf(fn *ssa.Function) lockCallKind {
	recv := fn.Signature.Recv()
	if recv == nil || !isMutex(deref(recv.Type())) {
		return noLockCall
	}
	return lockKindOfMethod(fn.Name())
}

func lockKindOfMethod(method string) lockCallKind {
	switch method {
	case "Lock", "RLock":
		return lockCalled
	case "Unlock", "RUnlock":
		return unlockCalled
	case "TryLock", "TryRLock":
		return tryCalled
	}
	return noLockCall
}

// lockTable holds the locks of the functions of a callGraph, and finds the locks that each function holds.
type lockTable struct {
	graph      *callGraph
	directives *directives
	objects    *objectTable
	locks      map[string]*lock
	waitLocks  map[ssa.CallInstruction]*lock // see waitLock
	conds      map[any][]ssa.Value           // see condFieldStores
	holds      map[string]*lock              // see holdOperation
	entry      locksAtEntry                  // see entryLocks
}

func newLockTable(g *callGraph, d *directives, o *objectTable) lockTable {
	return lockTable{
		graph: g, directives: d, objects: o, locks: map[string]*lock{}, waitLocks: map[ssa.CallInstruction]*lock{},
		holds: newHolds(),
	}
}

// fieldLock returns the class of the lock in a field of a type.
func (lt *lockTable) fieldLock(owner types.Type, v *types.Var) *lock {
	name := "struct." + v.Name()
	if n, ok := types.Unalias(deref(owner)).(*types.Named); ok {
		name = typeName(n.Origin().Obj()) + "." + v.Name()
		if n.Obj().Pkg() != nil {
			return lt.setLockProgram(lt.getOrAddLock(n.Obj().Pkg().Path()+"."+n.Obj().Name()+"."+v.Name(), name), v)
		}
	}
	return lt.setLockProgram(lt.getOrAddLock(lt.graph.Fset.Position(v.Pos()).String(), name), v)
}

func (lt *lockTable) setLockProgram(l *lock, v *types.Var) *lock {
	l.program = lt.directives.programLocks[v]
	return l
}

// markProgramLocks marks the locks of which each belongs to one program. A wait for such a lock is a wait for the
// memory of that program, like a copy.
func (lt *lockTable) markProgramLocks() {
	for _, f := range lt.graph.order {
		for _, s := range f.locks.direct {
			if l := s.l; l != nil && l.program != nil {
				f.ops = append(f.ops, operation{at: s.at, pos: s.at.Pos(), kind: opCopy,
					what: "locks " + l.name + ", which is held while memory of its program is copied"})
			}
		}
	}
}

func (lt *lockTable) getOrAddLock(key, name string) *lock {
	if lt.locks[key] == nil {
		lt.locks[key] = &lock{name: name, key: key}
	}
	return lt.locks[key]
}

// lockAt returns the lock at the target of a pointer. If the place is known, the result is a part of the class. If
// the lock is unknown, the result is nil.
func (lt *lockTable) lockAt(f *function, v ssa.Value) *lock {
	if l, ok := f.pointers[v]; ok {
		return l
	}
	if f.pointers == nil {
		f.pointers = map[ssa.Value]*lock{}
	}
	f.pointers[v] = lt.findLock(f, v)
	return f.pointers[v]
}

func (lt *lockTable) findLock(f *function, v ssa.Value) *lock {
	at := lt.objects.locationAt(f, v)
	if at.typ != nil {
		if l := lt.promotedMutex(at); l != nil {
			return l
		}
	} else if l := lt.embeddedMutex(v); l != nil {
		return l
	}
	switch addr := at.addr.(type) {
	case nil:
		return lt.lockOf(v)
	case *ssa.FieldAddr:
		class := lt.lockOf(addr)
		n := namedOf(addr.X.Type())
		if n == nil || !lt.objects.split.types[n.Origin()] {
			return class
		}
		if key := lt.objects.ownerKey(at.in, addr.X); key != "" {
			return lt.lockPart(class, key, fieldVar(addr.X.Type(), addr.Field).Name())
		}
		return class
	default:
		l := lt.lockOf(addr)
		if by := lt.lockOf(v); by != nil && l != nil && (l.name == "new" || l.name == "complit") {
			l.name = by.name // the name of the field that contains the lock
		}
		return l
	}
}

// embeddedMutex returns the class of the mutex whose methods a struct promotes, for an interface with an unknown place,
// such as a sync.Locker, that can only hold structs with an embeddedMutex mutex of this class. In any other case
// embeddedMutex returns nil.
func (lt *lockTable) embeddedMutex(v ssa.Value) (l *lock) {
	if !types.IsInterface(v.Type()) {
		return nil
	}
	isMade := func(v ssa.Value) bool {
		_, ok := v.(*ssa.MakeInterface)
		return ok
	}
	for _, o := range lt.graph.traces.origins(v, nil, isMade) {
		if isNil(o.v) {
			continue
		}
		m, ok := o.v.(*ssa.MakeInterface)
		if !ok {
			return nil
		}
		k := lt.promotedMutex(location{typ: m.X.Type()})
		if k == nil || l != nil && k != l {
			return nil
		}
		l = k
	}
	return l
}

// promotedMutex returns the mutex that provides the Lock method of a struct at a place, or of the target of a pointer
// at the place. The result is nil if the method is not promoted, and a class if the place is unknown.
func (lt *lockTable) promotedMutex(at location) *lock {
	_, path, _ := types.LookupFieldOrMethod(at.typ, true, nil, "Lock")
	owner, key := deref(at.typ), lt.objects.locationKey(at)
	for _, i := range path[:max(0, len(path)-1)] {
		st, ok := owner.Underlying().(*types.Struct)
		if !ok {
			return nil
		}
		n, field := namedOf(owner), st.Field(i)
		split := n != nil && lt.objects.split.types[n.Origin()]
		if n != nil && !split {
			key = n.Origin().String() // as in ownerKey
		}
		if isMutex(deref(field.Type())) {
			if class := lt.fieldLock(owner, field); !split || key == "" {
				return class
			} else {
				return lt.lockPart(class, key, field.Name())
			}
		}
		if key != "" {
			key += "." + field.Name()
		}
		if owner = deref(field.Type()); owner != field.Type() {
			key = "" // a pointer leads to an unknown place
		}
	}
	return nil
}

// onceLock returns the lock of a sync.Once during a call of its Do, and nil for another call. Every caller of Do waits
// until the function of the first caller has returned.
func (lt *lockTable) onceLock(f *function, at ssa.CallInstruction) *lock {
	fn := at.Common().StaticCallee()
	if fn == nil || fn.String() != "(*sync.Once).Do" {
		return nil
	}
	return lt.lockAt(f, at.Common().Args[0])
}

// lockPart returns the part of a class for a place.
func (lt *lockTable) lockPart(class *lock, key, field string) *lock {
	name := shortKey(key) + "." + field
	if strings.Contains(name, ".go:") { // the place is an allocation, which has no name
		name = class.name
	}
	l := lt.getOrAddLock(class.name+" of "+key, name)
	if l.class == nil {
		l.class, l.program = class, class.program
		class.parts = append(class.parts, l)
	}
	return l
}

// addHeldLock returns the class of the lock to which a value points, or nil if the class is unknown.
func (lt *lockTable) lockOf(v ssa.Value) *lock {
	switch v := v.(type) {
	case *ssa.FieldAddr:
		f := fieldVar(v.X.Type(), v.Field)
		if _, named := types.Unalias(deref(v.X.Type())).(*types.Named); !named {
			// the owner has a field with an unnamed struct type, and the struct has the field
			return lt.getOrAddLock(lt.graph.Fset.Position(f.Pos()).String(), outerName(v.X)+"."+f.Name())
		}
		return lt.fieldLock(v.X.Type(), f)
	case *ssa.IndexAddr:
		return lt.lockOf(v.X)
	case *ssa.Global:
		return lt.getOrAddLock(v.String(), typeName(v.Object()))
	case *ssa.Alloc:
		return lt.getOrAddLock(lt.graph.Fset.Position(v.Pos()).String(), v.Comment)
	case *ssa.FreeVar:
		return lt.lockOf(boundValueOf(v))
	case *ssa.UnOp:
		if v.Op == token.MUL {
			return lt.lockOf(v.X) // the value is a pointer to a lock
		}
	case *ssa.ChangeType:
		return lt.lockOf(v.X)
	case *ssa.Convert:
		return lt.lockOf(v.X)
	}
	return nil
}

func outerName(v ssa.Value) string {
	switch v := v.(type) {
	case *ssa.FieldAddr:
		if n, ok := types.Unalias(deref(v.X.Type())).(*types.Named); ok {
			return typeName(n.Obj()) + "." + fieldVar(v.X.Type(), v.Field).Name()
		}
		return outerName(v.X) + "." + fieldVar(v.X.Type(), v.Field).Name()
	case *ssa.Global:
		return typeName(v.Object())
	}
	return "struct"
}

// pointerPath returns a description of the target of a pointer, or "" if the target is unknown. Two targets with the
// same description are the same, unless a field has changed between them. Two descriptions that begin with
// different parameters probably denote different targets.
func pointerPath(v ssa.Value) string {
	switch v := v.(type) {
	case *ssa.Parameter:
		return v.Name()
	case *ssa.Global:
		return v.String()
	case *ssa.FieldAddr:
		if x := pointerPath(v.X); x != "" {
			return fmt.Sprintf("%s.%d", x, v.Field)
		}
	case *ssa.UnOp:
		if v.Op == token.MUL {
			switch v.X.(type) {
			case *ssa.FieldAddr, *ssa.Global:
				return pointerPath(v.X)
			}
		}
	}
	return ""
}
