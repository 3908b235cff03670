package vet

import (
	"go/types"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// checkSurvivors reports goroutines that a client's Add starts, that use objects of package ib repeatedly, and that
// Remove neither ends nor awaits.
func (p *Program) checkSurvivors() (reports []Report) {
	l := &lifeCheck{p: p, orders: map[*function]*blockOrder{}}
	for _, f := range p.order {
		if isMidlayer(f) || f.base != nil {
			continue
		}
		clients := map[ssa.Value]map[string]*function{}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				s, ok := at.(*ssa.Store)
				if !ok {
					continue
				}
				a, ok := s.Addr.(*ssa.FieldAddr)
				if !ok || !isNamed(a.X.Type(), ibPath+".Client") {
					continue
				}
				if g := p.funcs[functionOf(s.Val)]; g != nil {
					if clients[a.X] == nil {
						clients[a.X] = map[string]*function{}
					}
					clients[a.X][fieldVar(a.X.Type(), a.Field).Name()] = g
				}
			}
		}
		for _, c := range clients {
			if c["Add"] != nil && c["Remove"] != nil {
				reports = append(reports, l.survivorsOf(c["Add"], c["Remove"])...)
			}
		}
	}
	return reports
}

// reachableFuncs returns the functions that f calls, directly or indirectly, without the midlayer, and f.
func reachableFuncs(f *function, spawned bool) map[*function]bool {
	seen := map[*function]bool{f: true}
	for work := []*function{f}; len(work) > 0; work = work[1:] {
		for _, c := range work[0].calls {
			for _, g := range c.callees {
				if (spawned || !c.spawns) && !seen[g] && !isMidlayer(g) {
					seen[g] = true
					work = append(work, g)
				}
			}
		}
	}
	return seen
}

func (l *lifeCheck) survivorsOf(add, remove *function) (reports []Report) {
	ends := reachableFuncs(remove, true)
	for f := range ends {
		if f.Blocks != nil && signals(f) {
			return nil
		}
	}
	for f := range reachableFuncs(add, false) {
		for _, c := range f.calls {
			if _, ok := c.at.(*ssa.Go); !ok || len(c.callees) != 1 ||
				l.p.escapes.escapeAt(l.p.Fset, c.pos, Life) != nil {
				continue
			}
			body := reachableFuncs(c.callees[0], false)
			if !l.orderOf(c.callees[0]).loops || !usesDevice(body) || readsStoresOf(body, ends) {
				continue
			}
			name := functionName(f)
			reports = append(reports, Report{Life, c.pos, name + ", which is called as ib.Client.Add, starts a goroutine that uses " +
				"objects of the device, and Remove neither ends nor awaits it",
				[]PathStep{{c.pos, name, "starts " + functionName(c.callees[0])},
					{remove.Pos(), functionName(remove), "does not end it"}}})
		}
	}
	return reports
}

// usesDevice reports whether functions call methods of a device or of its objects.
func usesDevice(funcs map[*function]bool) bool {
	for f := range funcs {
		for _, c := range f.calls {
			if _, _, ok := objectMethod(c); ok {
				return true
			}
			if c.static != nil && strings.HasPrefix(c.static.FullName(), "(*"+ibPath+".Device)") {
				return true
			}
		}
	}
	return false
}

// signals reports whether a function may end another goroutine or wait for it: by a channel, a function value, or a
// function of another module.
func signals(f *function) bool {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			switch x := at.(type) {
			case *ssa.Send, *ssa.Select:
				return true
			case ssa.CallInstruction:
				if fn, ok := x.Common().Value.(*ssa.Builtin); ok && fn.Name() == "close" {
					return true
				}
			}
			if len(receivedChannels(at)) > 0 {
				return true
			}
		}
	}
	for _, c := range f.calls {
		if _, builtin := c.at.(ssa.CallInstruction).Common().Value.(*ssa.Builtin); builtin {
			continue
		}
		if c.static == nil {
			return true
		}
		if k := c.static.Pkg(); k == nil || isMidlayerPath(k.Path()) || len(c.callees) > 0 {
			if k != nil && isMidlayerPath(k.Path()) && len(c.callees) > 0 && c.static.Pkg().Path() != ibPath &&
				c.static.Pkg().Path() != completionPath {
				return true // for example the end of an attachment
			}
			continue
		}
		switch c.static.Pkg().Path() {
		case "fmt", "log", "log/slog", "errors", "slices", "maps", "strings", "strconv":
			continue
		}
		switch c.static.FullName() {
		case "(*sync.Mutex).Lock", "(*sync.Mutex).Unlock", "(*sync.RWMutex).Lock", "(*sync.RWMutex).Unlock",
			"(*sync.RWMutex).RLock", "(*sync.RWMutex).RUnlock":
			continue
		}
		return true
	}
	return false
}

// readsStoresOf reports whether a function of the first set reads a field, variable or map that one of the second set
// changes.
func readsStoresOf(readers, writers map[*function]bool) bool {
	stored := map[any]bool{}
	each := func(set map[*function]bool, visit func(at ssa.Instruction)) {
		for f := range set {
			for _, b := range f.Blocks {
				for _, at := range b.Instrs {
					visit(at)
				}
			}
		}
	}
	var place func(addr ssa.Value) any
	place = func(addr ssa.Value) any {
		switch x := addr.(type) {
		case *ssa.UnOp:
			return place(x.X)
		case *ssa.FieldAddr:
			return fieldVar(x.X.Type(), x.Field)
		case *ssa.FreeVar:
			return capturedVariable(x)
		case *ssa.Global, *ssa.Alloc:
			return x
		}
		return (*types.Var)(nil)
	}
	updated := map[any]bool{} // maps
	each(writers, func(at ssa.Instruction) {
		switch x := at.(type) {
		case *ssa.Store:
			stored[place(x.Addr)] = true
		case *ssa.MapUpdate:
			updated[place(x.Map)] = true
		case *ssa.Call:
			if fn, ok := x.Call.Value.(*ssa.Builtin); ok && (fn.Name() == "delete" || fn.Name() == "clear") {
				updated[place(x.Call.Args[0])] = true
			}
		}
	})
	delete(stored, (*types.Var)(nil))
	found := false
	each(readers, func(at ssa.Instruction) {
		switch x := at.(type) {
		case *ssa.UnOp:
			found = found || stored[place(x.X)]
		case *ssa.Lookup:
			found = found || updated[place(x.X)]
		case *ssa.Range:
			found = found || updated[place(x.X)]
		}
	})
	return found
}
