package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"verbena/ib/ibtest/strict"
	"verbena/ib/ibtest/strict/expire"
)

// lockingMethods lists the methods around which a rewritten source pauses.
var lockingMethods = []string{"Lock", "Unlock", "RLock", "RUnlock"}

// syncMethods lists the methods of package sync/atomic and of wait groups around which the source of a consumer pauses,
// with the numbers of their arguments.
var syncMethods = map[string]int{"Load": 0, "Store": 1, "Add": 1, "Swap": 1, "CompareAndSwap": 2, "Done": 0, "Wait": 0}

// valueMethods lists the methods with one result, which a pause passes on.
var valueMethods = []string{"Load", "Add", "Swap", "CompareAndSwap"}

// pauseFile is a file added to each rewritten package. A pause depends on the seed, the place, and the number of
// times that the place was reached, so a seed has the same effect in each run. It yields, or sleeps in a system call.
// The system call takes real time even in a bubble of package testing/synctest, and the goroutine does not count as
// blocked. Runs with faults have pauses only if their kind is late-threads or lost-wakeups. These also have longer
// pauses.
//
// scheduleLock records the order of two locks: the goroutine holds one and locks the other. If the opposite order was
// seen before, the pause is long, which makes a deadlock of the two likely. The order alone is no fault: a third lock
// can exclude the deadlock. A goroutine that waits for a lock for 15 seconds ends the program.
//
// The functions do not synchronise, because a synchronisation would hide data races from the race detector. Their
// tables are approximate: a lost entry costs a pause.
const pauseFile = `
import (
	"os"
	"reflect"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

var (
	scheduleKind    = os.Getenv("` + strict.FaultEnv + `")
	scheduleSeed    = scheduleReadSeed()
	scheduleHold    func() // expire.Hold in runs with faults, or nil
	scheduleReached [%d]uint32
	scheduleHeld    [1 << 10]scheduleHolder   // by goroutine
	scheduleOrders  [1 << 14]scheduleOrder    // by both locks
)

// scheduleHolder holds the locks that a goroutine holds or waits for.
type scheduleHolder struct {
	goroutine uint64
	locks     [8]uintptr
	n         int
	waits     uint32 // for a lock if odd
}

// scheduleOrder is an order of two locks.
type scheduleOrder struct {
	held, locked uintptr
	pauses       int
}

// scheduleWaits holds the state of the watch, which compares scheduleHeld once each second.
var scheduleWaits [len(scheduleHeld)]struct {
	last    uint32
	seconds int
}

func init() {
	if scheduleSeed != 0 {
		time.AfterFunc(time.Second, scheduleWatch) // a goroutine could be reported as a leak
	}
}

// scheduleWatch ends the program if a goroutine has waited for one lock for 15 seconds.
//
//go:norace
func scheduleWatch() {
	for i := range scheduleWaits {
		w := &scheduleWaits[i]
		if n := scheduleHeld[i].waits; n&1 == 0 || n != w.last {
			w.last, w.seconds = n, 0
			continue
		}
		if w.seconds++; w.seconds < 15 {
			continue
		}
		buf := make([]byte, 1<<20)
		println("schedule: goroutine", scheduleHeld[i].goroutine, "has waited for a lock for 15 seconds: deadlock")
		os.Stderr.Write(buf[:runtime.Stack(buf, true)])
		os.Exit(2)
	}
	time.AfterFunc(time.Second, scheduleWatch)
}

//go:norace
func scheduleRandom(place int) uint64 {
	scheduleReached[place]++
	x := scheduleSeed*0x9e3779b97f4a7c15 ^ uint64(place)<<40 ^ uint64(scheduleReached[place])
	for range 2 {
		x = (x ^ x>>31) * 0xbf58476d1ce4e5b9
		x ^= x >> 29
	}
	return x
}

func scheduleReadSeed() uint64 {
	if scheduleKind != "" && scheduleKind != "` + expire.LateThreads + `" && scheduleKind != "` + expire.LostWakeups + `" {
		return 0
	}
	seed, _ := strconv.ParseUint(os.Getenv("` + seedEnv + `"), 10, 64)
	return seed
}

//go:norace
func schedulePause(place int) {
	if scheduleSeed == 0 {
		return
	}
	x := scheduleRandom(place)
	switch n := x %% 64; {
	case n < 10:
		for range n %% 4 {
			runtime.Gosched()
		}
		runtime.Gosched()
	case n == 63:
		syscall.Nanosleep(&syscall.Timespec{Nsec: int64(x>>16) %% 100_000}, nil)
	}
	if scheduleHold != nil {
		scheduleHold()
	}
}

func schedulePass[T any](place int, v T) T {
	schedulePause(place)
	return v
}

//go:norace
func scheduleFind(held, locked uintptr) *scheduleOrder {
	h := (uint64(held)*0x9e3779b97f4a7c15 ^ uint64(locked)) * 0xbf58476d1ce4e5b9
	return &scheduleOrders[h>>32%%uint64(len(scheduleOrders))]
}

//go:norace
func scheduleGoroutine() *scheduleHolder {
	var buf [40]byte
	n := uint64(0)
	for _, c := range buf[len("goroutine "):runtime.Stack(buf[:], false)] {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + uint64(c-'0')
	}
	h := &scheduleHeld[n%%uint64(len(scheduleHeld))]
	if h.goroutine != n {
		h.goroutine, h.n, h.waits = n, 0, 0
	}
	return h
}

//go:norace
func scheduleAddress[T any](p *T) uintptr {
	v := reflect.ValueOf(p).Elem()
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() == reflect.Pointer {
		return v.Pointer()
	}
	return uintptr(unsafe.Pointer(p))
}

//go:norace
func scheduleLock(place int, lock uintptr, acquire func()) {
	if scheduleSeed == 0 {
		acquire()
		return
	}
	h := scheduleGoroutine()
	for _, held := range h.locks[:h.n] {
		if held == lock {
			continue
		}
		if o := scheduleFind(lock, held); o.held == lock && o.locked == held && o.pauses < 50 {
			o.pauses++
			syscall.Nanosleep(&syscall.Timespec{Nsec: int64(scheduleRandom(place)>>16) %% 3_000_000}, nil)
		}
		if o := scheduleFind(held, lock); o.held != held || o.locked != lock {
			*o = scheduleOrder{held: held, locked: lock}
		}
	}
	if h.n < len(h.locks) {
		h.locks[h.n] = lock
		h.n++
	}
	g := h.goroutine
	h.waits++
	acquire()
	if h.goroutine == g { // and no other goroutine has taken the entry
		h.waits++
	}
}

//go:norace
func scheduleUnlock(lock uintptr) {
	if scheduleSeed == 0 {
		return
	}
	h := scheduleGoroutine()
	for i := h.n - 1; i >= 0; i-- {
		if h.locks[i] == lock {
			copy(h.locks[i:h.n], h.locks[i+1:h.n])
			h.n--
			return
		}
	}
}
`

// holdFile is a file added to a consumer with pauses.
const holdFile = `
import "verbena/ib/ibtest/strict/expire"

func init() { scheduleHold = expire.Hold }
`

// strictFile is a test file added to each tested package. It imports the package that reads the environment.
const strictFile = `_test

import _ "verbena/ib/ibtest/strict"
`

// addStrictFile adds a test file to a package.
func (r *rewriter) addStrictFile(name, folder string, _ []string) error {
	return r.addFile(filepath.Join(folder, "schedule_strict_test.go"), "package "+strings.TrimSuffix(name,
		"_test")+strictFile)
}

// seedEnv is the environment variable with the seed of a run. Package ibtest uses it to detect that methods sleep.
const seedEnv = strict.SeedEnv

// rewriter creates an overlay of sources with pauses.
type rewriter struct {
	dir     string            // for the new files
	wide    bool              // pauses at all synchronisation, as for consumers
	files   int               // number of files in dir
	replace map[string]string // as in the overlay of the go command
	places  []string          // file:line:column of each pause
}

// textReplacement is new text for a part of a source.
type textReplacement struct {
	from, to int
	text     string
	closes   bool // follows an expression or a statement
}

// replaceTexts returns a source with replacements. The list has the replacement of an outer node before those of inner
// nodes. Replacements inside of a replaced part have no effect.
func replaceTexts(src []byte, in []textReplacement) string {
	order := make([]int, len(in))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := &in[i], &in[j]
		switch {
		case a.from != b.from:
			return cmp.Compare(a.from, b.from)
		case a.closes != b.closes:
			return map[bool]int{true: -1, false: 1}[a.closes]
		case a.closes:
			return j - i
		}
		return i - j
	})
	var out strings.Builder
	done := 0
	for _, i := range order {
		if r := &in[i]; r.from >= done {
			out.Write(src[done:r.from])
			out.WriteString(r.text)
			done = r.to
		}
	}
	out.Write(src[done:])
	return out.String()
}

// readSource returns the content of a file, which the overlay may have replaced already.
func (r *rewriter) readSource(file string) ([]byte, error) {
	if other, ok := r.replace[file]; ok {
		file = other
	}
	return os.ReadFile(file)
}

// rewritePackage adds a package to the overlay.
func (r *rewriter) rewritePackage(name, folder string, files []string) error {
	first := len(r.places)
	for _, f := range files {
		path := filepath.Join(folder, f)
		src, err := r.readSource(path)
		if err != nil {
			return err
		}
		text, places, err := insertPauses(path, src, len(r.places)-first, r.wide)
		if err != nil {
			return err
		}
		if len(places) == 0 {
			continue
		}
		r.places = append(r.places, places...)
		if err := r.addFile(path, text); err != nil {
			return err
		}
	}
	if len(r.places) == first {
		return fmt.Errorf("%s: no locks", folder)
	}
	if r.wide {
		if err := r.addFile(filepath.Join(folder, "schedule_hold.go"), "package "+name+"\n"+holdFile); err != nil {
			return err
		}
	}
	return r.addFile(filepath.Join(folder, "schedule_pause.go"), "package "+name+"\n"+fmt.Sprintf(pauseFile,
		len(r.places)-first))
}

func (r *rewriter) addFile(path, text string) error {
	r.files++
	to := filepath.Join(r.dir, fmt.Sprintf("%d_%s", r.files, filepath.Base(path)))
	r.replace[path] = to
	return os.WriteFile(to, []byte(text), 0o644)
}

// writeOverlayList writes the list of replaced files.
func (r *rewriter) writeOverlayList() (string, error) {
	b, err := json.Marshal(map[string]any{"Replace": r.replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(r.dir, "overlay.json")
	return file, os.WriteFile(file, b, 0o644)
}

// insertPauses returns a source with pauses, numbered from first, before and after each statement that locks or
// unlocks. With wide, there are also pauses at atomic operations, receives, the cases of select, wait groups and the
// start of goroutines. Line numbers do not change.
func insertPauses(path string, src []byte, first int, wide bool) (text string, places []string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	p := pauseInserter{fset: fset, src: src, first: first, wide: wide, passed: map[ast.Expr]bool{}}
	ast.Inspect(f, func(n ast.Node) bool {
		if wide {
			p.insertAtNode(n)
		}
		switch n := n.(type) {
		case *ast.BlockStmt:
			p.insertInList(n.List)
		case *ast.CaseClause:
			p.insertInList(n.Body)
		case *ast.CommClause:
			p.insertInList(n.Body)
		}
		return true
	})
	return replaceTexts(src, p.in), p.places, nil
}

// pauseInserter collects the pauses of a source file.
type pauseInserter struct {
	fset   *token.FileSet
	src    []byte
	first  int // number of the first pause
	wide   bool
	places []string // positions of the pauses
	in     []textReplacement
	passed map[ast.Expr]bool // calls that need no pause of their own, or whose result cannot be passed on
}

func (p *pauseInserter) offset(at token.Pos) int { return p.fset.Position(at).Offset }

// textOf returns the source text of a node.
func (p *pauseInserter) textOf(n ast.Node) string {
	return string(p.src[p.offset(n.Pos()):p.offset(n.End())])
}

// pause numbers a pause at a node, and returns the call.
func (p *pauseInserter) pause(n ast.Node) (call string) {
	p.places = append(p.places, p.fset.Position(n.Pos()).String())
	return fmt.Sprintf("schedulePause(%d)", p.first+len(p.places)-1)
}

func (p *pauseInserter) insert(at token.Pos, text string, closes bool) {
	p.in = append(p.in, textReplacement{p.offset(at), p.offset(at), text, closes})
}

// lockAddress returns an expression for the address of the lock of a call, or "" if the lock has no plain path.
func (p *pauseInserter) lockAddress(call *ast.CallExpr) string {
	lock := call.Fun.(*ast.SelectorExpr).X
	if !isAddressable(lock) {
		return ""
	}
	return fmt.Sprintf("scheduleAddress(&%s)", p.textOf(lock))
}

// insertInList inserts the pauses around the statements of a list.
func (p *pauseInserter) insertInList(list []ast.Stmt) {
	for _, s := range list {
		p.insertAroundLock(s)
	}
	for _, s := range list {
		if p.wide && isSyncStatement(s) {
			p.insert(s.Pos(), p.pause(s)+"; ", false)
			p.insert(s.End(), "; "+p.pause(s), true)
			if x, ok := s.(*ast.ExprStmt); ok {
				p.passed[x.X] = true
			}
		}
	}
}

// insertAroundLock inserts pauses around a statement that locks or unlocks.
func (p *pauseInserter) insertAroundLock(s ast.Stmt) {
	for { // skip labels
		l, ok := s.(*ast.LabeledStmt)
		if !ok {
			break
		}
		s = l.Stmt
	}
	replace := func(text string) {
		p.in = append(p.in, textReplacement{from: p.offset(s.Pos()), to: p.offset(s.End()), text: text})
	}
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok || !isLockCall(call) {
			return
		}
		text, lock := p.textOf(s), p.lockAddress(call)
		before := p.pause(s)
		switch {
		case lock != "" && isUnlockCall(call):
			before += fmt.Sprintf("; scheduleUnlock(%s)", lock)
		case lock != "":
			text = fmt.Sprintf("scheduleLock(%d, %s, %s)", p.first+len(p.places)-1, lock, strings.TrimSuffix(text, "()"))
		}
		replace(before + "; " + text + "; " + p.pause(s))
	case *ast.DeferStmt: // the last deferred call runs first
		if !isLockCall(s.Call) {
			return
		}
		text, lock := p.textOf(s), p.lockAddress(s.Call)
		before := "defer " + p.pause(s)
		if lock != "" && isUnlockCall(s.Call) {
			before += fmt.Sprintf("; defer scheduleUnlock(%s)", lock)
		}
		replace(before + "; " + text + "; defer " + p.pause(s))
	}
}

// insertAtNode inserts the pauses of wide at a node.
func (p *pauseInserter) insertAtNode(n ast.Node) {
	switch n := n.(type) {
	case *ast.CommClause:
		p.insert(n.Colon+1, " "+p.pause(n)+";", false)
	case *ast.DeferStmt:
		p.passed[n.Call] = true
	case *ast.GoStmt:
		p.passed[n.Call] = true
		if f, ok := n.Call.Fun.(*ast.FuncLit); ok {
			p.insert(f.Body.Lbrace+1, " "+p.pause(n)+";", false)
		}
	case *ast.AssignStmt:
		if len(n.Rhs) == 1 && len(n.Lhs) > 1 {
			p.passed[n.Rhs[0]] = true
		}
	case *ast.CallExpr:
		s, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		if len(n.Args) == 1 && s.Sel.Name == "Go" {
			if f, ok := n.Args[0].(*ast.FuncLit); ok {
				p.insert(f.Body.Lbrace+1, " "+p.pause(n)+";", false)
			}
		}
		if isSyncCall(n) && slices.Contains(valueMethods, s.Sel.Name) && !p.passed[n] {
			call := strings.Replace(p.pause(n), "Pause", "Pass", 1)
			p.insert(n.Pos(), strings.TrimSuffix(call, ")")+", ", false)
			p.insert(n.End(), ")", true)
		}
	}
}

// isSyncCall reports whether a call is an atomic operation or uses a wait group, according to its name.
func isSyncCall(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	n, ok := syncMethods[s.Sel.Name]
	return ok && n == len(call.Args)
}

// isSyncStatement reports whether a statement receives from a channel, closes one, or is a call of syncMethods.
func isSyncStatement(s ast.Stmt) bool {
	receives := func(x ast.Expr) bool {
		u, ok := x.(*ast.UnaryExpr)
		return ok && u.Op == token.ARROW
	}
	switch s := s.(type) {
	case *ast.AssignStmt:
		return len(s.Rhs) == 1 && receives(s.Rhs[0])
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return receives(s.X)
		}
		f, ok := call.Fun.(*ast.Ident)
		return ok && f.Name == "close" || isSyncCall(call)
	}
	return false
}

// isLockCall reports whether a call locks or unlocks.
func isLockCall(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && len(call.Args) == 0 && slices.Contains(lockingMethods, s.Sel.Name)
}

// isUnlockCall reports whether a locking call releases the lock.
func isUnlockCall(call *ast.CallExpr) bool {
	return strings.HasSuffix(call.Fun.(*ast.SelectorExpr).Sel.Name, "Unlock")
}

// isAddressable reports whether an expression is a variable or a path of fields, so that its address can be taken.
func isAddressable(x ast.Expr) bool {
	for {
		switch e := x.(type) {
		case *ast.Ident:
			return true
		case *ast.SelectorExpr:
			x = e.X
		default:
			return false
		}
	}
}
