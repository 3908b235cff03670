package vet

import (
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/ssa"
)

const (
	verbsPath = module + "/verbs"
	lifeDepth = 3 // depth of calls into which the check follows objects
)

// lifeKind is the kind of a fact about an object.
type lifeKind uint8

const (
	lifeEnded   lifeKind = iota // the object is destroyed, or nil
	lifeEarly                   // a parent has been destroyed before the object
	lifeInvalid                 // an invalidation of the region is posted
	lifeSent                    // a send from the region's memory is posted
)

type lifeKey struct {
	kind lifeKind
	path string // the object, see pathOf
}

// lifeFact holds on all paths to an instruction.
type lifeFact struct {
	call   *ssa.Call // the fact does not hold if this call fails; may be nil
	pos    token.Pos // in the outermost function
	isNil  bool      // the object is nil, or the post has failed
	closes string    // the name of the method that ended the object
	object string
	from   int64 // the sent bytes
	until  int64 // -1 if unknown
}

type lifeState map[lifeKey]lifeFact

// kinship is a relation between two fields of one struct: the object in child refers to the object in parent.
type kinship struct{ child, parent *types.Var }

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
		memory: map[*types.Var]*types.Var{}, roots: map[ssa.Value]string{}, said: map[token.Pos]bool{}}
	l.index()
	for _, f := range p.order {
		if l.makes[f] && f.base == nil && f.Synthetic == "" && l.isConsumer(f) {
			l.walk(&lifeFrame{l: l, f: f, bind: map[ssa.Value]string{}}, lifeState{})
		}
	}
	return l.reports
}

func (l *lifeCheck) isConsumer(f *function) bool {
	k := pkgOf(f.Function)
	return k != nil && !isMidlayer(f) && k.Path() != verbsPath && !strings.HasPrefix(k.Path(), verbsPath+"/")
}

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
	return isEnd(name) || slices.Contains([]string{"Num", "RKey", "Addr", "String", "State", "Init", "PD", "Device",
		"Name",
		"Access", "IB", "Len", "Entries", "Channel"}, name)
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

// indexCreation records the fields that hold a new object and the objects to which it refers.
func (l *lifeCheck) indexCreation(c *call) {
	name, _, _ := objectMethod(c)
	at, ok := c.at.(*ssa.Call)
	if !ok {
		return
	}
	child := createdBy(at)
	if child == nil {
		return
	}
	args := at.Common().Args
	var parents []ssa.Value
	switch name {
	case "CreateQP", "CreateSRQ", "RegMR", "RegBytes", "AllocMR", "AllocMW", "CreateAH", "Alloc", "RegSlice", "Register":
		parents = append(parents, args[0])
		if isNamed(args[0].Type(), completionPath+".CQ") {
			parents = append(parents, args[1])
		}
		for _, a := range args[1:] {
			parents = append(parents, queuesOf(a)...)
		}
	default:
		return
	}
	for _, cf := range fieldsWith(child) {
		for _, p := range parents {
			for _, pf := range fieldsWith(p) {
				if cf != pf {
					l.kin[kinship{cf, pf}] = "refers to it"
				}
			}
		}
		if name == "RegBytes" || name == "RegSlice" {
			for _, mf := range fieldsWith(args[1]) {
				l.memory[mf] = cf
			}
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

// lifeFrame is a function on the path of a walk.
type lifeFrame struct {
	l     *lifeCheck
	f     *function
	bind  map[ssa.Value]string // the paths of parameters and of variables of the enclosing function
	up    *lifeFrame
	at    ssa.Instruction // the call in up
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
		if s := fr.pathOf(x.X); s != "" {
			return s + "*"
		}
		return ""
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

// blockOrder is a reverse postorder of the blocks of a function.
type blockOrder struct {
	blocks []*ssa.BasicBlock
	loops  bool
}

func (l *lifeCheck) orderOf(f *function) *blockOrder {
	if o := l.orders[f]; o != nil {
		return o
	}
	o := &blockOrder{}
	state := map[*ssa.BasicBlock]int{} // 1: being visited, 2: visited
	var visit func(b *ssa.BasicBlock)
	visit = func(b *ssa.BasicBlock) {
		state[b] = 1
		for _, to := range b.Succs {
			switch state[to] {
			case 0:
				visit(to)
			case 1:
				o.loops = true
			}
		}
		state[b] = 2
		o.blocks = append(o.blocks, b)
	}
	visit(f.Blocks[0])
	slices.Reverse(o.blocks)
	l.orders[f] = o
	return o
}

// walk returns the facts after a function. Its argument in holds the facts before the function.
func (l *lifeCheck) walk(fr *lifeFrame, in lifeState) lifeState {
	order := l.orderOf(fr.f)
	blocks := order.blocks
	if len(blocks) > 200 {
		return lifeState{}
	}
	edges := map[[2]*ssa.BasicBlock]lifeState{}
	var out lifeState
	pass := func() (changed bool) {
		out = nil
		for _, b := range blocks {
			var st lifeState
			if b.Index == 0 {
				st = maps.Clone(in)
			}
			for _, from := range b.Preds {
				if e, ok := edges[[2]*ssa.BasicBlock{from, b}]; ok {
					st = joinLives(st, e)
				}
			}
			if st == nil {
				continue
			}
			for _, at := range b.Instrs {
				fr.step(st, at)
			}
			switch last := b.Instrs[len(b.Instrs)-1].(type) {
			case *ssa.Return:
				out = joinLives(out, st)
			case *ssa.If:
				for i, to := range b.Succs {
					changed = setEdge(edges, b, to, fr.branch(st, last, i)) || changed
				}
			default:
				for _, to := range b.Succs {
					changed = setEdge(edges, b, to, st) || changed
				}
			}
		}
		return changed
	}
	final := fr.final || fr.up == nil
	fr.final = false
	for i := 0; order.loops && i < 8; i++ {
		if !pass() {
			break
		}
	}
	if fr.final = final; final || !order.loops {
		pass()
	}
	if out == nil {
		return lifeState{}
	}
	return out
}

func setEdge(edges map[[2]*ssa.BasicBlock]lifeState, from, to *ssa.BasicBlock, st lifeState) bool {
	k := [2]*ssa.BasicBlock{from, to}
	old, ok := edges[k]
	if ok && len(old) == len(st) && maps.Equal(old, st) {
		return false
	}
	edges[k] = maps.Clone(st)
	return true
}

// joinLives returns the facts that hold in both states. A nil state stands for an unreachable one.
func joinLives(a, b lifeState) lifeState {
	if a == nil {
		return maps.Clone(b)
	}
	for k, x := range a {
		y, ok := b[k]
		switch {
		case !ok:
			delete(a, k)
		case x.isNil && !y.isNil:
			a[k] = y
		}
	}
	return a
}

// branch returns the facts at successor i of a branch.
func (fr *lifeFrame) branch(st lifeState, at *ssa.If, i int) lifeState {
	st = maps.Clone(st)
	for k, x := range st {
		if x.call == nil || x.call.Parent() != fr.f.Function {
			continue
		}
		err := ssa.Value(x.call)
		if t, ok := x.call.Type().(*types.Tuple); ok {
			if err = resultOf(x.call, t.Len()-1); err == nil {
				continue
			}
		}
		switch failed, on := failureEdge(at, err); {
		case on && failed == i && (k.kind == lifeInvalid || k.kind == lifeSent):
			st[k] = lifeFact{isNil: true}
		case on && failed == i, !on && dependsOn(at.Cond, err, 0):
			delete(st, k)
		}
	}
	if o, ok := at.Cond.(*ssa.BinOp); ok && (o.Op == token.EQL || o.Op == token.NEQ) && isNil(o.Y) {
		if (o.Op == token.NEQ) == (i == 0) && isErrorType(o.X.Type()) {
			for k, x := range st { // after an error the requests may have been flushed
				if !x.isNil && (k.kind == lifeInvalid || k.kind == lifeSent) {
					delete(st, k)
				}
			}
		}
		if path := fr.pathOf(o.X); path != "" && (o.Op == token.EQL) == (i == 0) {
			if _, ok := st[lifeKey{lifeEnded, path}]; !ok {
				st[lifeKey{lifeEnded, path}] = lifeFact{isNil: true}
			}
		}
	}
	return st
}

// forget removes the facts about a variable and about objects in it.
func (st lifeState) forget(path string) {
	for k := range st {
		if strings.HasPrefix(k.path, path) {
			delete(st, k)
		}
	}
}

// awaits removes the facts about posted requests.
func (st lifeState) awaits() {
	for k := range st {
		if k.kind == lifeInvalid || k.kind == lifeSent {
			delete(st, k)
		}
	}
}

// step applies an instruction.
func (fr *lifeFrame) step(st lifeState, at ssa.Instruction) {
	if v, ok := at.(ssa.Value); ok {
		if root := fr.l.roots[v]; root != "" {
			st.forget(root)
		}
	}
	if len(receivedChannels(at)) > 0 {
		st.awaits()
	}
	if u, ok := poolUseOf(at); ok && u.pool != nil && u.gives && u.value != nil {
		fr.give(st, u.value, u.pool.Name(), at)
	}
	switch x := at.(type) {
	case *ssa.Store:
		fr.write(st, x.Addr, at)
		if path := fr.pathOf(x.Addr); path != "" {
			st.forget(path + "*")
			st.forget(path + ".")
			if isNil(x.Val) {
				st[lifeKey{lifeEnded, path + "*"}] = lifeFact{isNil: true}
			}
		}
	case *ssa.RunDefers:
		for _, d := range slices.Backward(fr.defers(at.Block())) {
			fr.call(st, d, d)
		}
	case *ssa.Call:
		if b, ok := x.Common().Value.(*ssa.Builtin); ok {
			if b.Name() == "copy" || b.Name() == "clear" {
				fr.writeSlice(st, x.Common().Args[0], at)
			}
			return
		}
		fr.call(st, x, x)
	}
}

// defers returns the deferred calls that run at the end of a block, in the order of their statements.
func (fr *lifeFrame) defers(b *ssa.BasicBlock) (list []*ssa.Defer) {
	for _, d := range fr.f.DomPreorder() {
		if !d.Dominates(b) {
			continue
		}
		for _, at := range d.Instrs {
			if x, ok := at.(*ssa.Defer); ok {
				list = append(list, x)
			}
		}
	}
	return list
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
			if x.call != nil && !returnsError(x.call) {
				x.call = nil
			}
		}
		st[k] = x
	}
}

func (fr *lifeFrame) hasPending(st lifeState) bool {
	for k := range st {
		if k.kind == lifeInvalid || k.kind == lifeSent {
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
	st[lifeKey{lifeEnded, path}] = lifeFact{call: cause, pos: fr.where(at), closes: name, object: typ}
	of := fieldOf(v)
	for k, why := range fr.l.kin {
		if k.parent != of {
			continue
		}
		child, ok := fr.sibling(path, of, k.child, v)
		if _, ended := st[lifeKey{lifeEnded, child}]; !ok || ended {
			continue
		}
		st[lifeKey{lifeEarly, child}] = lifeFact{call: cause, pos: fr.where(at), closes: why, object: of.Name()}
	}
}

// post records the regions that a post invalidates, and the memory that it sends.
func (fr *lifeFrame) post(st lifeState, args []ssa.Value, cause *ssa.Call, at ssa.Instruction) {
	for _, wr := range workRequests(args[0]) {
		w := fr.describe(wr)
		if w.invalidates != "" {
			st[lifeKey{lifeInvalid, w.invalidates}] = lifeFact{call: cause, pos: fr.where(at)}
		}
		if w.sends != "" {
			st[lifeKey{lifeSent, w.sends}] = lifeFact{call: cause, pos: fr.where(at), from: w.from, until: w.until}
		}
	}
}

// workRequests returns the addresses of the work requests in an argument: a struct, its address, or a list.
func workRequests(v ssa.Value) (list []ssa.Value) {
	switch x := v.(type) {
	case *ssa.UnOp:
		if a, ok := x.X.(*ssa.Alloc); ok && x.Op == token.MUL {
			return []ssa.Value{a}
		}
	case *ssa.Alloc:
		return []ssa.Value{x}
	case *ssa.Slice:
		a, ok := x.X.(*ssa.Alloc)
		if !ok {
			return nil
		}
		for _, r := range *a.Referrers() {
			e, ok := r.(*ssa.IndexAddr)
			if !ok {
				continue
			}
			list = append(list, e)
			for _, s := range *e.Referrers() {
				if s, ok := s.(*ssa.Store); ok && s.Addr == e {
					list = append(list, workRequests(s.Val)...)
				}
			}
		}
	}
	return list
}

type describedWR struct {
	invalidates string
	sends       string
	from, until int64
}

// fieldStores returns the values that are stored in the fields of a struct, by the name of the field.
func fieldStores(addr ssa.Value) map[string]ssa.Value {
	found := map[string]ssa.Value{}
	for _, r := range *addr.Referrers() {
		a, ok := r.(*ssa.FieldAddr)
		if !ok {
			continue
		}
		for _, s := range *a.Referrers() {
			if s, ok := s.(*ssa.Store); ok && s.Addr == a {
				found[fieldVar(a.X.Type(), a.Field).Name()] = s.Val
			}
		}
	}
	return found
}

// describe returns the region that a work request invalidates or from whose memory it sends.
func (fr *lifeFrame) describe(addr ssa.Value) (w describedWR) {
	fields := fieldStores(addr)
	key := fields["InvalidateRKey"]
	if key == nil {
		key = fields["InvalidateKey"]
	}
	if mr := methodCall(key, "RKey"); mr != nil && fr.l.localInv != nil {
		if op, ok := fields["Opcode"].(*ssa.Const); ok && constant.Compare(op.Value, token.EQL, fr.l.localInv.Val()) {
			w.invalidates = fr.pathOf(mr)
		}
	}
	if fields["Inline"] != nil {
		return w
	}
	if fields["Flags"] != nil {
		if c, ok := fields["Flags"].(*ssa.Const); !ok || fr.l.inline == nil || constant.Sign(constant.BinaryOp(
			constant.ToInt(c.Value), token.AND, constant.ToInt(fr.l.inline.Val()))) != 0 {
			return w
		}
	}
	switch op, ok := fields["Opcode"].(*ssa.Const); {
	case fields["Opcode"] != nil && !ok, ok && !fr.l.isSend(op):
		return w
	}
	for _, name := range []string{"SGList", "Local", "List"} {
		v := fields[name]
		if v == nil {
			continue
		}
		if m := methodCall(v, "SGE"); m != nil {
			args := v.(*ssa.Call).Common().Args
			from, ok1 := constInt(args[1])
			n, ok2 := constInt(args[2])
			if ok1 {
				w.sends, w.from, w.until = fr.pathOf(m), from, -1
				if ok2 {
					w.until = from + n
				}
			}
			return w
		}
		list := workRequests(v)
		if len(list) == 0 || len(list) > 2 {
			return w
		}
		sge := fieldStores(list[len(list)-1])
		mr := methodCall(sge["LKey"], "LKey")
		from, ok := int64(0), false
		if b, isSum := sge["Addr"].(*ssa.BinOp); isSum && b.Op == token.ADD && methodCall(b.X, "Addr") != nil {
			from, ok = constInt(b.Y)
		} else {
			ok = methodCall(sge["Addr"], "Addr") != nil
		}
		if mr == nil || !ok {
			return w
		}
		w.sends, w.from, w.until = fr.pathOf(mr), from, -1
		if n, ok := constInt(sge["Length"]); ok {
			w.until = from + n
		}
	}
	return w
}

// isSend reports whether an opcode reads the memory of the sender.
func (l *lifeCheck) isSend(op *ssa.Const) bool {
	for _, name := range []string{"WRSend", "WRSendWithImm", "WRSendWithInv", "WRRDMAWrite", "WRRDMAWriteWithImm"} {
		if c := l.p.ibConst(name); c != nil && op.Value != nil && constant.Compare(op.Value, token.EQL, c.Val()) {
			return true
		}
	}
	return false
}

// methodCall returns the receiver of a call of an object's method, or nil.
func methodCall(v ssa.Value, name string) ssa.Value {
	c, ok := v.(*ssa.Call)
	if !ok || c.Common().StaticCallee() == nil || c.Common().StaticCallee().Name() != name || len(c.Common().Args) == 0 {
		return nil
	}
	if n := namedOf(c.Common().Args[0].Type()); n == nil || n.Obj().Name() != "MR" {
		return nil
	}
	return c.Common().Args[0]
}

func constInt(v ssa.Value) (int64, bool) {
	c, ok := v.(*ssa.Const)
	if !ok || c.Value == nil || c.Value.Kind() != constant.Int {
		return 0, false
	}
	return c.Int64(), true
}

// write applies a store to an element of memory.
func (fr *lifeFrame) write(st lifeState, addr ssa.Value, at ssa.Instruction) {
	if e, ok := addr.(*ssa.IndexAddr); ok {
		if i, ok := constInt(e.Index); ok {
			fr.writeAt(st, e.X, i, at)
		}
	}
}

// writeSlice applies a write to the beginning of a slice.
func (fr *lifeFrame) writeSlice(st lifeState, v ssa.Value, at ssa.Instruction) {
	fr.writeAt(st, v, 0, at)
}

// writeAt reports a write to memory that a posted request sends.
func (fr *lifeFrame) writeAt(st lifeState, v ssa.Value, offset int64, at ssa.Instruction) {
	if !fr.hasPending(st) {
		return
	}
	for {
		s, ok := v.(*ssa.Slice)
		if !ok {
			break
		}
		if s.Low != nil {
			n, ok := constInt(s.Low)
			if !ok {
				return
			}
			offset += n
		}
		v = s.X
	}
	mr := ""
	if m := methodCall(v, "Bytes"); m != nil {
		mr = fr.pathOf(m)
	} else if path := fr.pathOf(v); path != "" && fr.l.memory[fieldOf(v)] != nil {
		mr, _ = fr.sibling(path, fieldOf(v), fr.l.memory[fieldOf(v)], v)
	}
	x, ok := st[lifeKey{lifeSent, mr}]
	if mr == "" || !ok || x.isNil || offset < x.from || x.until < 0 && offset != x.from ||
		x.until >= 0 && offset >= x.until ||
		!fr.isUnguarded(at.Block()) {
		return
	}
	fr.report(Life, at, x, "changes memory that a posted request sends, before the request has completed", "posts the request")
}
