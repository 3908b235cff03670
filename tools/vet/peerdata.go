package vet

import (
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// Data are the fields of completions and events, bytes, the errors of package ib, and all values computed from these,
// or looked up by them.

// dataTypes lists types of package ib with values that a device or a peer determines.
var dataTypes = []string{"WCStatus", "WCOpcode", "WCFlags", "EventType"}

// isIBType reports whether a type is one that package ib declares, perhaps as an alias.
func (p *Program) isIBType(t types.Type, name string) bool {
	k := p.prog.ImportedPackage(ibPath)
	if k == nil {
		return false
	}
	o := k.Pkg.Scope().Lookup(name)
	return o != nil && types.Identical(o.Type(), t)
}

// dataPoint is a value on a path from a callback.
type dataPoint struct {
	v  ssa.Value
	at *rootVisit
}

// dataSearch examines whether values are data.
type dataSearch struct {
	p    *Program
	seen map[dataPoint]bool
}

const maxDataDepth = 40

// isData reports whether a value of a function is data, on a path from a callback.
func (d *dataSearch) isData(v ssa.Value, at *rootVisit, depth int) bool {
	if _, ok := v.(*ssa.Const); ok || v == nil || depth > maxDataDepth || d.seen[dataPoint{v, at}] {
		return false
	}
	d.seen[dataPoint{v, at}] = true
	if slices.ContainsFunc(dataTypes, func(name string) bool { return d.p.isIBType(v.Type(), name) }) || isDataRead(v) {
		return true
	}
	all := func(list ...ssa.Value) bool {
		return slices.ContainsFunc(list, func(x ssa.Value) bool { return d.isData(x, at, depth+1) })
	}
	switch x := v.(type) {
	case *ssa.Parameter:
		return d.isArgumentData(x, at, depth)
	case *ssa.FreeVar:
		b := boundValueOf(x)
		return b != nil && d.isData(b, nil, depth+1)
	case *ssa.Alloc:
		return d.isStoredData(x, at, depth)
	case *ssa.UnOp:
		return d.isLoadedData(x, at, depth)
	case *ssa.Lookup:
		return all(x.Index, x.X)
	case *ssa.Index:
		return all(x.Index, x.X)
	case *ssa.IndexAddr:
		return all(x.Index)
	case *ssa.Field:
		return all(x.X)
	case *ssa.Phi:
		return all(x.Edges...)
	case *ssa.BinOp:
		return all(x.X, x.Y)
	case *ssa.Slice:
		return all(x.X, x.Low, x.High)
	case *ssa.Extract:
		if c, ok := x.Tuple.(*ssa.Call); ok {
			return d.isResultData(c, x.Index, at, depth)
		}
		return all(x.Tuple)
	case *ssa.Call:
		return d.isResultData(x, 0, at, depth)
	case *ssa.Convert:
		return isByteSlice(x.X.Type()) || all(x.X)
	case *ssa.ChangeType:
		return all(x.X)
	case *ssa.ChangeInterface:
		return all(x.X)
	case *ssa.MakeInterface:
		return all(x.X)
	case *ssa.TypeAssert:
		return all(x.X)
	}
	return false
}

// isDataRead reports whether a value is a field of a completion or an event, or a byte of a buffer.
func isDataRead(v ssa.Value) bool {
	at, ok := v.(ssa.Instruction)
	if !ok {
		return false
	}
	if field, _ := readField(at); field != "" {
		return true
	}
	switch x := v.(type) {
	case *ssa.Field:
		return isNamed(x.X.Type(), ibPath+".Event")
	case *ssa.UnOp:
		switch a := x.X.(type) {
		case *ssa.FieldAddr:
			return isNamed(a.X.Type(), ibPath+".Event")
		case *ssa.IndexAddr:
			return isByteSlice(a.X.Type())
		}
	}
	return false
}

// isArgumentData reports whether the caller on the path passes data for a parameter.
func (d *dataSearch) isArgumentData(x *ssa.Parameter, at *rootVisit, depth int) bool {
	if at == nil || at.from == nil || at.f.Function != x.Parent() {
		return false
	}
	a := argumentFor(at.by, x.Parent(), slices.Index(x.Parent().Params, x))
	return a != nil && d.isData(a, at.from, depth+1)
}

// isLoadedData reports whether a variable of the function, or an element, holds data. Other memory is the state of the
// program.
func (d *dataSearch) isLoadedData(x *ssa.UnOp, at *rootVisit, depth int) bool {
	if x.Op != token.MUL {
		return x.Op != token.ARROW && d.isData(x.X, at, depth+1)
	}
	switch a := x.X.(type) {
	case *ssa.Alloc:
		return d.isStoredData(a, at, depth)
	case *ssa.FreeVar, *ssa.IndexAddr:
		return d.isData(a, at, depth+1)
	case *ssa.FieldAddr:
		if a, ok := storageRoot(a).(*ssa.Alloc); ok {
			return d.isStoredData(a, at, depth)
		}
		b, ok := a.X.(*ssa.UnOp) // a field of an element that was looked up
		return ok && isElement(b) && d.isData(b, at, depth+1)
	}
	return false
}

func isElement(x *ssa.UnOp) bool {
	_, ok := x.X.(*ssa.IndexAddr)
	return ok
}

// isStoredData reports whether a function stores data in a variable, or decodes bytes into it.
func (d *dataSearch) isStoredData(a *ssa.Alloc, at *rootVisit, depth int) bool {
	return slices.ContainsFunc(*a.Referrers(), func(r ssa.Instruction) bool {
		switch r := r.(type) {
		case *ssa.Store:
			return r.Addr == ssa.Value(a) && d.isData(r.Val, at, depth+1)
		case *ssa.MakeInterface:
			return slices.ContainsFunc(*r.Referrers(), decodesBytes)
		}
		return decodesBytes(r)
	})
}

// decodesBytes reports whether an instruction is a call with bytes.
func decodesBytes(at ssa.Instruction) bool {
	c, ok := at.(*ssa.Call)
	return ok && slices.ContainsFunc(c.Call.Args, func(v ssa.Value) bool { return isByteSlice(v.Type()) })
}

// isResultData reports whether a call returns data: an error of package ib, or a result that depends on data.
func (d *dataSearch) isResultData(c *ssa.Call, i int, at *rootVisit, depth int) bool {
	if b, ok := c.Call.Value.(*ssa.Builtin); ok && (b.Name() == "len" || b.Name() == "cap") {
		return d.isData(c.Call.Args[0], at, depth+1)
	}
	fn := c.Call.StaticCallee()
	k := d.p.traces.calls[c]
	if fn != nil && pkgOf(fn) != nil && isMidlayerPath(pkgOf(fn).Path()) {
		results := fn.Signature.Results()
		return i < results.Len() && isErrorType(results.At(i).Type())
	}
	if slices.ContainsFunc(c.Call.Args, func(a ssa.Value) bool {
		return isCompletion(a.Type()) || isByteSlice(a.Type()) || d.isData(a, at, depth+1)
	}) {
		return true
	}
	if k == nil {
		return false
	}
	for _, g := range k.ownCallees() {
		for _, b := range g.Blocks {
			r, ok := b.Instrs[len(b.Instrs)-1].(*ssa.Return)
			if ok && i < len(r.Results) && d.isData(r.Results[i], &rootVisit{f: g, from: at, by: k}, depth+8) {
				return true
			}
		}
	}
	return false
}
