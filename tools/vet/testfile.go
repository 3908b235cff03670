package vet

import (
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// trustTestFiles removes operations of test files that sleep only if the test is wrong. A test knows how many messages
// it sends, so a channel with a capacity has space for them. A loop on the time stands for a computation.
func (p *Program) trustTestFiles() {
	for _, f := range p.order {
		if !strings.HasSuffix(p.Fset.Position(f.Pos()).Filename, "_test.go") {
			continue
		}
		f.ops = slices.DeleteFunc(f.ops, func(o operation) bool {
			send, sends := o.at.(*ssa.Send)
			return o.kind == opSleep && (o.what == "spins "+onTime || sends && p.traces.isBuffered(send.Chan))
		})
	}
}

// isBuffered reports whether a channel was made with a capacity, wherever it may have been made.
func (t *valueTracer) isBuffered(ch ssa.Value) bool {
	from := t.containerAllocs(ch)
	return len(from) > 0 && !slices.ContainsFunc(from, func(o valueOrigin) bool {
		n, constant := o.v.(*ssa.MakeChan).Size.(*ssa.Const)
		return constant && n.Int64() == 0
	})
}
