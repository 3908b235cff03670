package vet

import (
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// kinship is a relation between two fields of one struct: the object in child refers to the object in parent.
type kinship struct{ child, parent *types.Var }

// index finds the functions with calls of objects, and the relations between fields.
func (l *lifeCheck) index() {
	callers := map[*function][]*function{}
	var work, makers []*function
	for _, f := range l.p.order {
		if !l.isConsumer(f) {
			continue
		}
		for _, o := range f.ops {
			l.sleeps[o.at] = o.kind == opSleep
		}
		for _, c := range f.calls {
			for _, g := range c.ownCallees() {
				callers[g] = append(callers[g], f)
			}
			name, typ, ok := objectMethod(c)
			if !ok {
				continue
			}
			if !l.relevant[f] {
				l.relevant[f] = true
				work = append(work, f)
			}
			if !l.makes[f] && (isEnd(name) || typ == "QP" && strings.HasPrefix(name, "PostSend")) {
				l.makes[f] = true
				makers = append(makers, f)
			}
			l.indexCreation(c)
		}
		l.indexReceives(f)
	}
	addCallers(l.relevant, work, callers)
	addCallers(l.makes, makers, callers)
}

// addCallers adds the direct and indirect callers of functions to a set.
func addCallers(set map[*function]bool, work []*function, callers map[*function][]*function) {
	for ; len(work) > 0; work = work[1:] {
		for _, g := range callers[work[0]] {
			if !set[g] {
				set[g] = true
				work = append(work, g)
			}
		}
	}
}

var objectTypes = []string{"PD", "CQ", "QP", "SRQ", "MR", "MW", "AH", "XRCD", "Channel", "Buffer", "Device"}

// objectMethod returns the name and the receiver's type of a call of a method of an object of package ib or verbs.
func objectMethod(c *call) (name, typ string, ok bool) {
	if c.static == nil || c.static.Pkg() == nil {
		return "", "", false
	}
	path := c.static.Pkg().Path()
	recv := c.static.Signature().Recv()
	if recv == nil || path != ibPath && path != completionPath && path != verbsPath {
		return "", "", false
	}
	n := namedOf(recv.Type())
	if n == nil || !slices.Contains(objectTypes, n.Obj().Name()) || path == ibPath && n.Obj().Name() == "Device" {
		return "", "", false
	}
	return c.static.Name(), n.Obj().Name(), true
}

// isEnd reports whether a method destroys its receiver.
func isEnd(name string) bool {
	switch name {
	case "Destroy", "DestroyContext", "Dealloc", "DeallocContext", "Dereg", "DeregContext", "Close":
		return true
	}
	return false
}

// isInert reports whether a method may be called after the end of its receiver.
func isInert(name string) bool {
	return isEnd(name) || slices.Contains([]string{"Num", "RKey", "LKey", "Addr", "String", "State", "Init", "PD",
		"Device", "Name", "Access", "IB", "Len", "Entries", "Channel"}, name)
}

// fieldsWith returns the fields from which a value is loaded or in which it is stored.
func fieldsWith(v ssa.Value) (list []*types.Var) {
	if v == nil {
		return nil
	}
	if f := fieldOf(v); f != nil {
		list = append(list, f)
	}
	if v.Referrers() == nil {
		return list
	}
	for _, r := range *v.Referrers() {
		if s, ok := r.(*ssa.Store); ok && s.Val == v {
			if a, ok := s.Addr.(*ssa.FieldAddr); ok {
				list = append(list, fieldVar(a.X.Type(), a.Field))
			}
		}
	}
	return list
}

// createdBy returns the object that a call creates, or nil.
func createdBy(at *ssa.Call) ssa.Value {
	for _, user := range *at.Referrers() {
		if e, ok := user.(*ssa.Extract); ok && e.Index == 0 {
			return e
		}
	}
	return nil
}

// creation is the creation of an object.
type creation struct {
	child   ssa.Value
	parents []ssa.Value // the objects to which it refers
	memory  ssa.Value   // the registered slice, or nil
}

func creationOf(c *call) *creation {
	at, ok := c.at.(*ssa.Call)
	if !ok {
		return nil
	}
	n := &creation{child: createdBy(at)}
	if n.child == nil {
		return nil
	}
	args := at.Common().Args
	switch name, _, _ := objectMethod(c); name {
	case "RegBytes", "RegSlice":
		n.memory = args[1]
	case "CreateQP", "CreateSRQ", "RegMR", "AllocMR", "AllocMW", "CreateAH", "Alloc", "Register":
	default:
		return nil
	}
	n.parents = append(n.parents, args[0])
	if isNamed(args[0].Type(), completionPath+".CQ") {
		n.parents = append(n.parents, args[1])
	}
	for _, a := range args[1:] {
		n.parents = append(n.parents, queuesOf(a)...)
	}
	return n
}

// indexCreation records the fields that hold a new object and the objects to which it refers.
func (l *lifeCheck) indexCreation(c *call) {
	n := creationOf(c)
	if n == nil {
		return
	}
	for _, cf := range fieldsWith(n.child) {
		for _, p := range n.parents {
			for _, pf := range fieldsWith(p) {
				if cf != pf {
					l.kin[kinship{cf, pf}] = "refers to it"
				}
			}
		}
		for _, mf := range fieldsWith(n.memory) {
			l.memory[mf] = cf
		}
	}
}

// queuesOf returns the queues in the attributes of a new queue pair.
func queuesOf(v ssa.Value) (list []ssa.Value) {
	load, ok := v.(*ssa.UnOp)
	if !ok || load.Op != token.MUL || load.X.Referrers() == nil {
		return nil
	}
	for _, r := range *load.X.Referrers() {
		a, ok := r.(*ssa.FieldAddr)
		if !ok || !slices.Contains([]string{"SendCQ", "RecvCQ", "SRQ"}, fieldVar(a.X.Type(), a.Field).Name()) {
			continue
		}
		for _, s := range *a.Referrers() {
			if s, ok := s.(*ssa.Store); ok && s.Addr == a {
				list = append(list, s.Val)
			}
		}
	}
	return list
}

// indexReceives records the fields of a queue pair and of the region of its receives.
func (l *lifeCheck) indexReceives(f *function) {
	var pairs, regions []*types.Var
	var collect func(g *function, depth int)
	collect = func(g *function, depth int) {
		for _, c := range g.calls {
			at, ok := c.at.(*ssa.Call)
			if !ok || c.static == nil {
				continue
			}
			name, typ, isMethod := objectMethod(c)
			switch {
			case !isMethod:
				for _, h := range c.ownCallees() {
					if depth == 0 && h != f && l.isConsumer(h) {
						collect(h, 1)
					}
				}
			case depth == 0 && typ == "QP" && name == "PostRecv":
				pairs = append(pairs, fieldsWith(at.Common().Args[0])...)
			case depth == 0 && typ == "QP" && strings.HasPrefix(name, "PostSend"):
				pairs, regions = nil, nil
				return
			case name == "LKey" || typ == "MR" && name == "SGE":
				regions = append(regions, fieldsWith(at.Common().Args[0])...)
			}
		}
	}
	collect(f, 0)
	for _, q := range pairs {
		for _, m := range regions {
			l.kin[kinship{q, m}] = "may have receives in it"
		}
	}
}
