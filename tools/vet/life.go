package vet

import (
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/ssa"
)

const (
	verbsPath    = module + "/verbs"
	providerPath = verbsPath + "/provider"
	lifeDepth    = 3 // depth of calls into which the check follows objects
)

// lifeKind is the kind of a fact about an object.
type lifeKind uint8

const (
	lifeEnded   lifeKind = iota // the object is destroyed, or nil
	lifeEarly                   // a parent has been destroyed before the object
	lifeInvalid                 // an invalidation of the region is posted
	lifeSent                    // a send from the region's memory is posted
	lifeAimed                   // a datagram to the address handle is posted
)

// isPending reports whether the fact holds until the completion of a request.
func (k lifeKind) isPending() bool { return k == lifeInvalid || k == lifeSent || k == lifeAimed }

type lifeKey struct {
	kind lifeKind
	path string // the object, see pathOf
}

// lifeFact holds on all paths to an instruction.
type lifeFact struct {
	call  *ssa.Call // the fact does not hold if this call fails; may be nil
	pos   token.Pos // in the outermost function
	isNil bool      // the object is nil, or the post has failed
	// mayFail means that the fact does not hold on some of the paths, on which a call has failed, or the object is nil.
	mayFail bool
	closes  string // the name of the method that ended the object
	object  string
	from    int64 // the sent bytes
	until   int64 // -1 if unknown
}

type lifeState map[lifeKey]lifeFact

// lifeCheck follows the objects of consumers along the paths of each function and of its callees.
type lifeCheck struct {
	p        *Program
	release  *releaseCheck
	localInv *types.Const
	inline   *types.Const
	relevant map[*function]bool // functions that call methods of objects, also in callees
	makes    map[*function]bool // functions that end objects or post sends
	orders   map[*function]*blockOrder
	sleeps   map[ssa.Instruction]bool
	kin      map[kinship]string // the value is the reason
	memory   map[*types.Var]*types.Var
	refers   map[string][]string // the paths of objects that refer to an object
	regions  map[string]string   // the path of the region that holds a slice
	stores   map[*function]map[any][]*ssa.Store
	roots    map[ssa.Value]string
	reports  []Report
	said     map[token.Pos]bool
}

// checkLives reports uses of destroyed objects, wrong orders of destruction, and changes of memory and regions that
// posted requests use.
func (p *Program) checkLives(r *releaseCheck) []Report {
	l := &lifeCheck{p: p, release: r, localInv: p.ibConst(wrLocalInv), inline: p.ibConst("SendInline"),
		relevant: map[*function]bool{}, makes: map[*function]bool{}, orders: map[*function]*blockOrder{},
		sleeps: map[ssa.Instruction]bool{}, kin: map[kinship]string{},
		memory: map[*types.Var]*types.Var{}, refers: map[string][]string{}, regions: map[string]string{},
		stores: map[*function]map[any][]*ssa.Store{}, roots: map[ssa.Value]string{}, said: map[token.Pos]bool{}}
	l.index()
	for _, f := range p.order {
		if l.makes[f] && f.base == nil && f.Synthetic == "" && l.isConsumer(f) {
			l.walk(&lifeFrame{l: l, f: f, bind: map[ssa.Value]string{}}, lifeState{})
		}
	}
	return l.reports
}

func (l *lifeCheck) isConsumer(f *function) bool { return pkgOf(f.Function) != nil && !isLibrary(f) }

// isLibrary reports whether a function belongs to package ib, to package verbs, or to a package below these.
func isLibrary(f *function) bool {
	k := pkgOf(f.Function)
	return isMidlayer(f) || k != nil && (k.Path() == verbsPath || strings.HasPrefix(k.Path(), verbsPath+"/"))
}

// lifeFrame is a function on the path of a walk.
type lifeFrame struct {
	l     *lifeCheck
	f     *function
	bind  map[ssa.Value]string // the paths of parameters and of variables of the enclosing function
	up    *lifeFrame
	at    ssa.Instruction // the call in up
	now   ssa.Instruction // the current instruction
	depth int
	final bool // the walk has reached its fixed point, and reports
}

// pathOf returns a name for a value: a variable, result or parameter, followed by fields. Two loads of one field have
// one name. pathOf returns "" if the value is an element of a container.
func (fr *lifeFrame) pathOf(v ssa.Value) string {
	if s, ok := fr.bind[v]; ok {
		return s
	}
	switch x := v.(type) {
	case *ssa.UnOp:
		if x.Op != token.MUL {
			break
		}
		switch s := fr.pathOf(x.X); {
		case s == "":
			return ""
		case !fr.isReplaced(x, s):
			return s + "*"
		}
	case *ssa.FieldAddr:
		if s := fr.pathOf(x.X); s != "" {
			return s + "." + strconv.Itoa(x.Field)
		}
		return ""
	case *ssa.Field:
		if s, ok := strings.CutSuffix(fr.pathOf(x.X), "*"); ok {
			return s + "." + strconv.Itoa(x.Field) + "*"
		}
		return ""
	case *ssa.ChangeType:
		return fr.pathOf(x.X)
	case *ssa.ChangeInterface:
		return fr.pathOf(x.X)
	case *ssa.MakeInterface:
		return fr.pathOf(x.X)
	case *ssa.TypeAssert:
		if !x.CommaOk {
			return fr.pathOf(x.X)
		}
	case *ssa.FreeVar, *ssa.IndexAddr, *ssa.Const, *ssa.Lookup, *ssa.Index, *ssa.Phi, *ssa.Next:
		if _, free := v.(*ssa.FreeVar); !free {
			return ""
		}
	}
	if fr.l.roots[v] == "" {
		fr.l.roots[v] = "#" + strconv.Itoa(len(fr.l.roots)+1) + "/"
	}
	return fr.l.roots[v]
}

// isReplaced reports whether the frame has stored another value in a variable since a load of it.
func (fr *lifeFrame) isReplaced(load *ssa.UnOp, path string) bool {
	if fr.now == nil || load.Parent() != fr.now.Parent() {
		return false
	}
	return slices.ContainsFunc(fr.l.storesOf(fr.f)[variableOf(load.X)], func(s *ssa.Store) bool {
		return isAfter(s, load) && isAfter(fr.now, s) && fr.pathOf(s.Addr) == path
	})
}

// isAfter reports whether an instruction follows another one. In a loop the former may also precede the latter.
func isAfter(at, before ssa.Instruction) bool {
	b, from := at.Block(), before.Block()
	if b == from {
		return slices.Index(b.Instrs, at) > slices.Index(b.Instrs, before)
	}
	return from.Dominates(b) || !b.Dominates(from) && reachesBlock(from, b, nil)
}

// variableOf returns a field, or the address of another variable.
func variableOf(addr ssa.Value) any {
	if a, ok := addr.(*ssa.FieldAddr); ok {
		return fieldVar(a.X.Type(), a.Field)
	}
	return addr
}

// storesOf returns the stores of a function, by their variable.
func (l *lifeCheck) storesOf(f *function) map[any][]*ssa.Store {
	if of := l.stores[f]; of != nil {
		return of
	}
	of := map[any][]*ssa.Store{}
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			if s, ok := at.(*ssa.Store); ok {
				of[variableOf(s.Addr)] = append(of[variableOf(s.Addr)], s)
			}
		}
	}
	l.stores[f] = of
	return of
}

// sibling returns the path of another field of the struct that holds a path, and whether there is one.
func (fr *lifeFrame) sibling(path string, of, to *types.Var, v ssa.Value) (string, bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 || fieldOf(v) != of {
		return "", false
	}
	load, ok := v.(*ssa.UnOp)
	if !ok {
		return "", false
	}
	s, ok := deref(load.X.(*ssa.FieldAddr).X.Type()).Underlying().(*types.Struct)
	if !ok {
		return "", false
	}
	for j := range s.NumFields() {
		if s.Field(j).Origin() == to {
			return path[:i+1] + strconv.Itoa(j) + "*", true
		}
	}
	return "", false
}

// call applies a call.
func (fr *lifeFrame) call(st lifeState, at ssa.CallInstruction, where ssa.Instruction) {
	l := fr.l
	c := l.release.callees[at]
	if c == nil || c.spawns {
		return
	}
	args := at.Common().Args
	if name, typ, ok := objectMethod(c); ok {
		fr.method(st, at, c, name, typ)
		return
	}
	if name := c.static; name != nil {
		switch full := name.FullName(); {
		case full == "(*sync.Pool).Put":
			fr.give(st, args[1], "the pool", at)
			return
		case strings.HasPrefix(full, "(encoding/binary.") && strings.HasPrefix(name.Name(), "PutUint"):
			fr.writeSlice(st, args[len(args)-2], at)
			return
		case full == "io.ReadFull" || full == "crypto/rand.Read":
			fr.writeSlice(st, args[len(args)-1], at)
			return
		}
	}
	if l.sleeps[at] {
		st.awaits()
	}
	own := c.ownCallees()
	if len(own) == 0 {
		if c.static == nil && len(c.library) == 0 {
			st.awaits()
		}
		return
	}
	gives := len(own) == 1 && fr.depth < lifeDepth && l.isConsumer(own[0]) && len(own[0].Blocks) < 40
	if gives && !l.makes[own[0]] && len(st) == 0 {
		return
	}
	if !gives || !l.relevant[own[0]] && !fr.hasPending(st) {
		for _, g := range own {
			if l.relevant[g] && l.isConsumer(g) {
				clear(st)
			} else if l.p.sleep.of[g] != nil {
				st.awaits()
			}
		}
		return
	}
	g := own[0]
	for up := fr; up != nil; up = up.up {
		if up.f == g {
			clear(st)
			return
		}
	}
	sub := &lifeFrame{l: l, f: g, bind: map[ssa.Value]string{}, up: fr, at: at, depth: fr.depth + 1, final: fr.final}
	for i, v := range g.Params {
		if a := argumentFor(c, g.Function, i); a != nil {
			sub.bind[v] = fr.pathOf(a)
		}
	}
	if m, ok := at.Common().Value.(*ssa.MakeClosure); ok {
		for i, v := range g.FreeVars {
			sub.bind[v] = fr.pathOf(m.Bindings[i])
		}
	}
	out := l.walk(sub, maps.Clone(st))
	before := maps.Clone(st)
	clear(st)
	for k, x := range out {
		if old, ok := before[k]; !ok || old != x {
			x.call, _ = at.(*ssa.Call)
			if x.call != nil && !returnsError(x.call) && !x.mayFail {
				x.call = nil
			}
		}
		st[k] = x
	}
}

func (fr *lifeFrame) hasPending(st lifeState) bool {
	for k := range st {
		if k.kind.isPending() {
			return true
		}
	}
	return false
}

func returnsError(c *ssa.Call) bool {
	t := c.Type()
	if tuple, ok := t.(*types.Tuple); ok {
		if tuple.Len() == 0 {
			return false
		}
		t = tuple.At(tuple.Len() - 1).Type()
	}
	return isErrorType(t)
}

// method applies a call of a method of an object.
func (fr *lifeFrame) method(st lifeState, at ssa.CallInstruction, c *call, name, typ string) {
	args := at.Common().Args
	path := fr.pathOf(args[0])
	cause, _ := at.(*ssa.Call)
	if n := creationOf(c); n != nil {
		fr.create(n)
	}
	if !isInert(name) {
		fr.use(st, path, at, typ+"."+name)
	}
	for _, a := range args[1:] {
		for _, q := range append(queuesOf(a), a) {
			if n := namedOf(q.Type()); n != nil && slices.Contains(objectTypes, n.Obj().Name()) {
				fr.use(st, fr.pathOf(q), at, typ+"."+name)
			}
		}
	}
	switch {
	case isEnd(name):
		if typ == "QP" || typ == "SRQ" || typ == "CQ" {
			st.awaits()
		}
		fr.changed(st, path, at, name)
		if path != "" {
			fr.end(st, path, args[0], cause, at, name, typ)
		}
	case name == "Map" || name == "UpdateKey" || name == "Rereg":
		fr.changed(st, path, at, name)
	case typ == "QP" && (name == "Drain" || name == "Modify" || name == "SetError"):
		st.awaits()
		for k := range st {
			if k.kind == lifeEarly && k.path == path {
				delete(st, k)
			}
		}
		if _, ok := st[lifeKey{lifeEnded, path}]; !ok && path != "" && name == "Drain" {
			st[lifeKey{lifeEnded, path}] = lifeFact{isNil: true}
		}
	case name == "Poll" || name == "Process" || name == "Wait" || name == "Completions":
		st.awaits()
	case typ == "QP" && strings.HasPrefix(name, "PostSend"):
		fr.post(st, args[1:], cause, at)
	}
}

// create records the relations of a new object in a variable.
func (fr *lifeFrame) create(n *creation) {
	child := fr.pathOf(n.child)
	for _, p := range n.parents {
		if path := fr.pathOf(p); path != "" && !slices.Contains(fr.l.refers[path], child) {
			fr.l.refers[path] = append(fr.l.refers[path], child)
		}
	}
	if n.memory != nil {
		if v, offset, ok := unsliced(n.memory); ok && offset == 0 && fr.pathOf(v) != "" {
			fr.l.regions[fr.pathOf(v)] = child
		}
	}
}

// where returns the position of an instruction in the outermost function.
func (fr *lifeFrame) where(at ssa.Instruction) token.Pos {
	for ; fr.up != nil; fr = fr.up {
		at = fr.at
	}
	if c, ok := at.(ssa.CallInstruction); ok {
		return posOf(c)
	}
	return at.Pos()
}

func (fr *lifeFrame) report(check string, at ssa.Instruction, since lifeFact, text, before string) {
	fr.reportAt(check, fr.where(at), at, since, text, before)
}

func (fr *lifeFrame) reportAt(check string, pos token.Pos, at ssa.Instruction, since lifeFact, text, before string) {
	l := fr.l
	outer := fr
	for outer.up != nil {
		outer = outer.up
	}
	if !fr.final || l.said[pos] || fr.up != nil && since.pos == fr.where(at) || // the callee has its own report
		l.p.escapes.escapeAt(l.p.Fset, pos, check) != nil {
		return
	}
	l.said[pos] = true
	name := functionName(outer.f)
	path := []PathStep{{since.pos, name, before}, {fr.where(at), name, "continues"}}
	if own := posOfInstruction(at); own != fr.where(at) {
		path = append(path, PathStep{own, functionName(fr.f), "makes the second call"})
	}
	l.reports = append(l.reports, Report{check, pos, name + " " + text, path})
}

func posOfInstruction(at ssa.Instruction) token.Pos {
	if c, ok := at.(ssa.CallInstruction); ok {
		return posOf(c)
	}
	return at.Pos()
}

// isUnguarded reports whether a block of the frame runs whenever the outermost function reaches the call.
func (fr *lifeFrame) isUnguarded(b *ssa.BasicBlock) bool {
	for x := fr; x.up != nil; x = x.up {
		for _, r := range x.f.Blocks {
			if _, ok := r.Instrs[len(r.Instrs)-1].(*ssa.Return); ok && !b.Dominates(r) {
				return false
			}
		}
		b = x.at.Block()
	}
	return true
}

// use reports the use of an object that has been destroyed.
func (fr *lifeFrame) use(st lifeState, path string, at ssa.Instruction, what string) {
	x, ok := st[lifeKey{lifeEnded, path}]
	if path == "" || !ok || x.isNil || !fr.isUnguarded(at.Block()) {
		return
	}
	if c, ok := at.(*ssa.Call); ok && expectsError(c) {
		return
	}
	fr.report(Life, at, x, "calls "+what+" with an object that it has ended before: "+x.object+"."+x.closes,
		"calls "+x.closes)
}

// expectsError reports whether the program compares the error of a call with a particular error.
func expectsError(c *ssa.Call) bool {
	err := ssa.Value(c)
	if t, ok := c.Type().(*types.Tuple); ok {
		if err = resultOf(c, t.Len()-1); err == nil {
			return false
		}
	}
	return err.Referrers() != nil && slices.ContainsFunc(*err.Referrers(), func(r ssa.Instruction) bool {
		k, ok := r.(*ssa.Call)
		return ok && fullName(k.Common().StaticCallee()) == "errors.Is"
	})
}

// changed reports the change or the end of a region before its invalidation has completed.
func (fr *lifeFrame) changed(st lifeState, path string, at ssa.Instruction, name string) {
	if x, ok := st[lifeKey{lifeInvalid, path}]; ok && !x.isNil && path != "" && fr.isUnguarded(at.Block()) {
		fr.report(Release, at, x, "calls MR."+name+" when the region's invalidation has been posted, not when it has completed",
			"posts "+wrLocalInv)
	}
}

// give reports a region, or a struct with a region, that is given back before its invalidation has completed.
func (fr *lifeFrame) give(st lifeState, v ssa.Value, pool string, at ssa.Instruction) {
	path := fr.pathOf(v)
	for k, x := range st {
		if k.kind == lifeInvalid && !x.isNil && path != "" && (k.path == path || strings.HasPrefix(k.path, path+".")) {
			fr.reportAt(Release, x.pos, at, x, "gives a region back to "+pool+" when its invalidation has been posted, not "+
				"when it has completed", "posts "+wrLocalInv)
		}
	}
}

// end records the end of an object.
func (fr *lifeFrame) end(st lifeState, path string, v ssa.Value, cause *ssa.Call, at ssa.Instruction,
	name, typ string) {
	if x, ok := st[lifeKey{lifeEarly, path}]; ok && !x.isNil {
		fr.report(Life, at, x, "ends an object after "+x.object+", but the former "+x.closes, "ends "+x.object)
	}
	// Only the address handles of package verbs, which end by Close, must outlive their datagrams.
	if x, ok := st[lifeKey{lifeAimed, path}]; ok && !x.isNil && name == "Close" && fr.isUnguarded(at.Block()) {
		fr.report(Life, at, x, "closes an address handle before the datagram that uses it has completed", "posts the datagram")
	}
	st[lifeKey{lifeEnded, path}] = lifeFact{call: cause, pos: fr.where(at), closes: name, object: typ}
	for k, why := range fr.dependantsWith(path, v, typ) {
		if _, ended := st[lifeKey{lifeEnded, k.path}]; !ended {
			st[k] = lifeFact{call: cause, pos: fr.where(at), closes: why.closes, object: why.object}
		}
	}
}

// dependants returns the keys of objects that refer to an object.
func (fr *lifeFrame) dependants(path string, v ssa.Value) []lifeKey {
	return slices.Collect(maps.Keys(fr.dependantsWith(path, v, "")))
}

// dependantsWith returns the objects that refer to an object, with the names and reasons for a report.
func (fr *lifeFrame) dependantsWith(path string, v ssa.Value, typ string) map[lifeKey]lifeFact {
	found := map[lifeKey]lifeFact{}
	for _, child := range fr.l.refers[path] {
		found[lifeKey{lifeEarly, child}] = lifeFact{closes: "refers to it", object: "the " + typ}
	}
	of := fieldOf(v)
	for k, why := range fr.l.kin {
		if k.parent != of {
			continue
		}
		if child, ok := fr.sibling(path, of, k.child, v); ok {
			found[lifeKey{lifeEarly, child}] = lifeFact{closes: why, object: of.Name()}
		}
	}
	return found
}
