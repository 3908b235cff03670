package vet

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// trustTestFiles removes operations of test files that sleep only if the test is wrong. A test knows how many messages
// it sends, so a channel with a capacity has space for them. A loop on the time stands for a computation. With
// Options.TrustSpace, the same applies to the channels of consumers, except those of smallSends.
func (p *Program) trustTestFiles() {
	var small map[ssa.Instruction]bool
	if p.trustSpace {
		small = p.smallSends()
	}
	for _, f := range p.order {
		isTest := strings.HasSuffix(p.Fset.Position(f.Pos()).Filename, "_test.go")
		trusts := p.trustSpace && !isMidlayer(f) && !p.isDriverPackage(pkgOf(f.Function))
		f.ops = slices.DeleteFunc(f.ops, func(o operation) bool {
			if o.kind != opSleep || !isTest && !trusts {
				return false
			}
			if send, ok := o.at.(*ssa.Send); ok {
				return p.traces.isBuffered(send.Chan) && (isTest || !small[send])
			}
			return isTest && o.what == "spins "+onTime
		})
	}
}

// isDriverPackage reports whether a package has a type that implements ib.Driver.
func (p *Program) isDriverPackage(pkg *types.Package) bool {
	k := p.prog.ImportedPackage(ibPath)
	if k == nil || pkg == nil {
		return false
	}
	driver, ok := k.Pkg.Scope().Lookup("Driver").Type().Underlying().(*types.Interface)
	return ok && slices.ContainsFunc(pkg.Scope().Names(), func(name string) bool {
		t, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		return ok && (types.Implements(t.Type(), driver) || types.Implements(types.NewPointer(t.Type()), driver))
	})
}

// isBuffered reports whether a channel was made with a capacity, wherever it may have been made.
func (t *valueTracer) isBuffered(ch ssa.Value) bool {
	from := t.containerAllocs(ch)
	return len(from) > 0 && !slices.ContainsFunc(from, func(o valueOrigin) bool {
		n, constant := o.v.(*ssa.MakeChan).Size.(*ssa.Const)
		return constant && n.Int64() == 0
	})
}
