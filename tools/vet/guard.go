package vet

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/go/ssa"
)

// The following constants are the checks of packages that serve mutually distrusting users.
const (
	// Opens a file that could become a controlling terminal, or whose descriptor a child could inherit.
	Open    = "open"
	Restat  = "restat"  // opens a path that was passed to stat before
	Receive = "receive" // reads from a socket and discards the descriptors of a message
	Close   = "close"   // closes a received descriptor; the sender can delay the close without a limit
	Recover = "recover" // starts a goroutine that parses bytes of a user, without a deferred recover
)

// guardChecks holds the checks of a package that are enabled.
type guardChecks map[string]bool

// guardedPackages maps the checked packages to their enabled checks. The escapes of a disabled check still count as
// used. Thus the escapes can be written before the check is enabled.
var guardedPackages = map[string]guardChecks{
	module + "/supervisor": allGuards,
	module + "/service":    allGuards,
	module + "/remote":     allGuards,
	// The package closes only files of /proc, whose close does not block. Package remote has verified the kind of
	// these files.
	module + "/umem":                 {Open: true, Restat: true, Receive: true, Recover: true},
	module + "/internal/ctl":         allGuards,
	module + "/internal/ctl/devfile": allGuards,
	module + "/internal/shm":         allGuards,
	module + "/internal/rights":      allGuards,
	module + "/internal/reopen":      allGuards,
	module + "/internal/principal":   allGuards,
}

// guardSnippetPrefix lists the snippets to which all checks apply.
const guardSnippetPrefix = module + "/tools/vet/testdata/guard/"

var allGuards = guardChecks{Open: true, Restat: true, Receive: true, Close: true, Recover: true}

// guardChecksOf returns the checks of a package, and reports whether the package has checks.
func guardChecksOf(k *types.Package) (guardChecks, bool) {
	if k == nil {
		return nil, false
	}
	if strings.HasPrefix(k.Path(), guardSnippetPrefix) {
		return allGuards, true
	}
	g, ok := guardedPackages[k.Path()]
	return g, ok
}

// guardChecker checks the functions of the packages that serve users.
type guardChecker struct {
	graph      *callGraph
	directives *directives
}

// checkGuards applies the checks to the packages in guards.
func (p *Program) checkGuards() (reports []Report) {
	report := func(f *function, check string, pos token.Pos, text string) {
		if x := f.enclosingEscape(&p.callGraph, check); x != nil {
			x.Used = true
			return
		}
		if p.escapes.escapeAt(p.Fset, pos, check) != nil {
			return
		}
		if g, _ := guardChecksOf(pkgOf(f.Function)); g[check] {
			reports = append(reports, Report{Check: check, Pos: pos, Text: functionName(f) + " " + text})
		}
	}
	var guarded []*function
	for _, f := range p.order {
		if _, ok := guardChecksOf(pkgOf(f.Function)); ok && f.Synthetic == "" {
			guarded = append(guarded, f)
			p.guards.checkOpens(f, report)
			p.guards.checkStatsBeforeOpen(f, report)
		}
	}
	p.guards.checkReceives(guarded, report)
	p.guards.checkCloses(guarded, report)
	p.guards.checkRecovers(guarded, report)
	return reports
}

// reporter records a violation of a check in a function.
type reporter func(f *function, check string, pos token.Pos, text string)

// enclosingEscape returns the escape of a function or of an enclosing function.
func (f *function) enclosingEscape(cg *callGraph, check string) *Escape {
	for g := f; g != nil; g = cg.funcs[g.Parent()] {
		if x := g.allowed[check]; x != nil {
			return x
		}
		if g.Parent() == nil {
			break
		}
	}
	return nil
}

// hasDirective reports whether a function or an enclosing function has a directive.
func (ds *directives) hasDirective(f *ssa.Function, verb string) bool {
	for f.Parent() != nil {
		f = f.Parent()
	}
	obj, ok := objectOf(f).(*types.Func)
	return ok && slices.ContainsFunc(ds.decls[obj.Origin()], func(d directive) bool { return d.verb == verb })
}

// calls calls f for each call in a function. The string is the full name of the callee or of the interface method.
func forEachCall(f *ssa.Function, do func(at ssa.CallInstruction, name string, args []ssa.Value)) {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			c, ok := at.(ssa.CallInstruction)
			if !ok {
				continue
			}
			common := c.Common()
			name := ""
			if common.IsInvoke() {
				name = common.Method.FullName()
			} else if fn := common.StaticCallee(); fn != nil {
				if o, ok := objectOf(fn).(*types.Func); ok {
					name = o.FullName()
				}
			}
			do(c, name, common.Args)
		}
	}
}

func posOf(at ssa.CallInstruction) token.Pos {
	if at.Pos().IsValid() {
		return at.Pos()
	}
	return at.Common().Pos()
}

const unixPrefix = "golang.org/x/sys/unix."

// openArgs holds the indexes of the directory, the path and the flags among the arguments of a function that opens a
// file. An index of -1 means that the function does not have the argument.
type openArgs struct {
	dir, path, flags int
	cloexec          bool // whether the function always sets O_CLOEXEC
}

// openFuncs lists the functions that open a file by its path. The functions of package os that open a directory are
// omitted.
var openFuncs = map[string]openArgs{
	unixPrefix + "Open":    {-1, 0, 1, false},
	unixPrefix + "Openat":  {0, 1, 2, false},
	unixPrefix + "Openat2": {0, 1, -1, false},
	unixPrefix + "Creat":   {-1, 0, -1, false},
	"syscall.Open":         {-1, 0, 1, false},
	"syscall.Openat":       {0, 1, 2, false},
	"syscall.Creat":        {-1, 0, -1, false},
	"os.OpenFile":          {-1, 0, 1, true},
	"os.Open":              {-1, 0, -1, true},
	"os.Create":            {-1, 0, -1, true},
	"os.ReadFile":          {-1, 0, -1, true},
	"os.WriteFile":         {-1, 0, -1, true},
	"(*os.Root).Open":      {0, 1, -1, true},
	"(*os.Root).Create":    {0, 1, -1, true},
	"(*os.Root).OpenFile":  {0, 1, 2, true},
	"(*os.Root).ReadFile":  {0, 1, -1, true},
}

// statFuncs lists the functions that inspect a file by its path.
var statFuncs = map[string]openArgs{
	unixPrefix + "Stat":      {-1, 0, -1, false},
	unixPrefix + "Lstat":     {-1, 0, -1, false},
	unixPrefix + "Statx":     {0, 1, -1, false},
	unixPrefix + "Fstatat":   {0, 1, -1, false},
	unixPrefix + "Access":    {-1, 0, -1, false},
	unixPrefix + "Faccessat": {0, 1, -1, false},
	unixPrefix + "Readlink":  {-1, 0, -1, false},
	"syscall.Stat":           {-1, 0, -1, false},
	"syscall.Lstat":          {-1, 0, -1, false},
	"os.Stat":                {-1, 0, -1, false},
	"os.Lstat":               {-1, 0, -1, false},
	"os.Readlink":            {-1, 0, -1, false},
	"(*os.Root).Stat":        {0, 1, -1, false},
	"(*os.Root).Lstat":       {0, 1, -1, false},
}

// checkOpens finds opens of paths that could be a terminal, and opens whose descriptor a child could inherit.
func (gd *guardChecker) checkOpens(f *function, report reporter) {
	forEachCall(f.Function, func(at ssa.CallInstruction, callee string, args []ssa.Value) {
		o, ok := openFuncs[callee]
		if !ok {
			return
		}
		set := 0
		if o.flags >= 0 {
			set = knownFlagBits(args[o.flags], nil)
		}
		var missing []string
		if set&(unix.O_NOCTTY|unix.O_PATH|unix.O_DIRECTORY) == 0 && !isHarmlessPath(args[o.path]) {
			missing = append(missing, "O_NOCTTY")
		}
		if set&unix.O_CLOEXEC == 0 && !o.cloexec {
			missing = append(missing, "O_CLOEXEC")
		}
		if len(missing) > 0 {
			report(f, Open, posOf(at), fmt.Sprintf("opens a path by %s without %s",
				strings.TrimPrefix(callee, "golang.org/x/sys/"), strings.Join(missing, " and ")))
		}
	})
}

// isHarmlessPath reports whether a path is a constant that cannot name a terminal.
func isHarmlessPath(path ssa.Value) bool {
	c, ok := path.(*ssa.Const)
	if !ok || c.Value == nil || c.Value.Kind() != constant.String {
		return false
	}
	s := constant.StringVal(c.Value)
	return s == "/dev/null" || slices.ContainsFunc([]string{"/proc/", "/sys/", "/etc/"}, func(p string) bool {
		return strings.HasPrefix(s, p)
	}) &&
		!strings.Contains(s, "/fd/") && !strings.Contains(s, "..")
}

// knownFlagBits returns the flags that a value contains in any case.
func knownFlagBits(v ssa.Value, seen []ssa.Value) int {
	if slices.Contains(seen, v) {
		return ^0 // the value is computed in a loop, so the flags of the other edges decide
	}
	seen = append(seen, v)
	switch v := v.(type) {
	case *ssa.Const:
		if v.Value != nil {
			if n, ok := constant.Int64Val(constant.ToInt(v.Value)); ok {
				return int(n)
			}
		}
	case *ssa.Convert:
		return knownFlagBits(v.X, seen)
	case *ssa.ChangeType:
		return knownFlagBits(v.X, seen)
	case *ssa.Phi:
		set := ^0
		for _, e := range v.Edges {
			set &= knownFlagBits(e, seen)
		}
		return set
	case *ssa.BinOp:
		switch v.Op {
		case token.OR, token.ADD:
			return knownFlagBits(v.X, seen) | knownFlagBits(v.Y, seen)
		case token.AND:
			return knownFlagBits(v.X, seen) & knownFlagBits(v.Y, seen)
		case token.AND_NOT:
			if c, ok := v.Y.(*ssa.Const); ok {
				return knownFlagBits(v.X, seen) &^ knownFlagBits(c, nil)
			}
		}
	}
	return 0
}

// checkStatsBeforeOpen finds opens of paths that the same function has passed to stat before. The two calls may refer
// to different files.
func (gd *guardChecker) checkStatsBeforeOpen(f *function, report reporter) {
	type look struct {
		at   ssa.CallInstruction
		what string // the called function
		by   string
	}
	var looks []look
	forEachCall(f.Function, func(at ssa.CallInstruction, callee string, args []ssa.Value) {
		if s, ok := statFuncs[callee]; ok {
			looks = append(looks, look{at, describePath(s, args), callee})
		}
	})
	forEachCall(f.Function, func(at ssa.CallInstruction, callee string, args []ssa.Value) {
		o, ok := openFuncs[callee]
		if !ok || isHarmlessPath(args[o.path]) {
			return
		}
		what := describePath(o, args)
		for _, l := range looks {
			if l.what == what && canPrecede(l.at, at) {
				report(f, Restat, posOf(at), fmt.Sprintf("opens a path that it has passed to %s at %s",
					strings.TrimPrefix(l.by, "golang.org/x/sys/"), gd.graph.FormatPos(posOf(l.at))))
				return
			}
		}
	})
}

func describePath(o openArgs, args []ssa.Value) string {
	s := describeValue(args[o.path], 0)
	if o.dir >= 0 {
		s = describeValue(args[o.dir], 0) + "/" + s
	}
	return s
}

// pureCalls lists functions with results that depend only on the arguments.
var pureCalls = []string{"fmt.Sprintf", "fmt.Sprint", "strconv.Itoa", "path/filepath.Join", "path.Join",
	"(*os.File).Name", "(*os.File).Fd", "path/filepath.Clean"}

// describeValue describes a value. Two values with the same description are equal as long as the function does not
// change variables.
func describeValue(v ssa.Value, depth int) string {
	if depth < 12 {
		of := func(v ssa.Value) string { return describeValue(v, depth+1) }
		switch v := v.(type) {
		case *ssa.Const:
			return v.String()
		case *ssa.MakeInterface:
			return of(v.X)
		case *ssa.Convert:
			return of(v.X)
		case *ssa.ChangeType:
			return of(v.X)
		case *ssa.BinOp:
			return "(" + of(v.X) + v.Op.String() + of(v.Y) + ")"
		case *ssa.FieldAddr:
			return of(v.X) + "." + fmt.Sprint(v.Field)
		case *ssa.Field:
			return of(v.X) + "." + fmt.Sprint(v.Field)
		case *ssa.UnOp:
			return v.Op.String() + of(v.X)
		case *ssa.Slice: // the slice of the arguments of a variadic call
			if a, ok := v.X.(*ssa.Alloc); ok && v.Low == nil && v.High == nil {
				return describeArray(a, depth)
			}
		case *ssa.Call:
			if fn := v.Call.StaticCallee(); fn != nil {
				if o, ok := objectOf(fn).(*types.Func); ok && slices.Contains(pureCalls, o.FullName()) {
					s := o.FullName() + "("
					for _, a := range v.Call.Args {
						s += of(a) + ","
					}
					return s + ")"
				}
			}
		}
	}
	return fmt.Sprintf("%p", v)
}

func describeArray(a *ssa.Alloc, depth int) string {
	s := "["
	for _, r := range *a.Referrers() {
		if i, ok := r.(*ssa.IndexAddr); ok {
			for _, r := range *i.Referrers() {
				if st, ok := r.(*ssa.Store); ok {
					s += describeValue(i.Index, depth+1) + ":" + describeValue(st.Val, depth+1) + ","
				}
			}
		}
	}
	return s + "]"
}

// canPrecede reports whether one instruction can run before another instruction in the same call of their
// function.
func canPrecede(a, b ssa.Instruction) bool {
	if a.Block() == b.Block() {
		return slices.Index(a.Block().Instrs, a) < slices.Index(b.Block().Instrs, b)
	}
	seen := map[*ssa.BasicBlock]bool{}
	queue := []*ssa.BasicBlock{a.Block()}
	for len(queue) > 0 {
		k := queue[0]
		queue = queue[1:]
		for _, s := range k.Succs {
			if s == b.Block() {
				return true
			}
			if !seen[s] {
				seen[s] = true
				queue = append(queue, s)
			}
		}
	}
	return false
}
