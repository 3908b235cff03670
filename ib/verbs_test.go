package ib

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"verbena/uapi/verb"
)

// notVerbs lists the driver's methods that are not verbs: methods of the device's life cycle, and queries of the
// midlayer.
var notVerbs = map[string]bool{
	"Driver.EnterError": true, "UserContexter.AllocUserContext": true, "UserContexter.DeallocUserContext": true,
	"Disassociator.Disassociate": true, "NumberReuser.ReuseNumbers": true, "Refiller.CallsRefill": true,
	"SendQueuer.QueueSend": true, "LibraryFaulter.LibraryFault": true,
	"WriteHolder.HoldWrite": true, "WriteHolder.StoreWrites": true, "WriteHolder.StoreRange": true,
	"CQCounter.Waiting": true, "QPPeeker.Peek": true, "UserQP.TakeBack": true,
	"MethodDriver.Methods": true,
	// The next entries are functions of the midlayer that drivers call.
	"UserContext.AllocShared": true, "OwnedContext.Owner": true,
	"MethodCall.Context": true, "MethodCall.Has": true, "MethodCall.Number": true,
	"MethodCall.Bytes": true, "MethodCall.Object": true, "MethodCall.Output": true,
}

// TestVerbTableMatchesDriver checks that the table of verbs names exactly the driver's methods that are verbs.
func TestVerbTableMatchesDriver(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "driver.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	methods := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if i, ok := spec.Type.(*ast.InterfaceType); ok {
			for _, m := range i.Methods.List {
				for _, name := range m.Names {
					methods[spec.Name.Name+"."+name.Name] = true
				}
			}
		}
		return true
	})
	inTable := map[string]bool{}
	for _, v := range verb.Table {
		for _, name := range v.Driver {
			if inTable[name] {
				t.Errorf("table of verbs: got %s twice, want it once", name)
			}
			if inTable[name] = true; !methods[name] {
				t.Errorf("table of verbs: got %s, want a method of driver.go", name)
			}
		}
	}
	for name := range methods {
		if inTable[name] == notVerbs[name] {
			t.Errorf("%s: got table of verbs %v and notVerbs %v, want exactly one of them", name, inTable[name], notVerbs[name])
		}
	}
}
