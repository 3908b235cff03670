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
)

// lockingMethods lists the methods around which a rewritten source pauses.
var lockingMethods = []string{"Lock", "Unlock", "RLock", "RUnlock"}

// pauseFile is a file added to each rewritten package. A pause depends on the seed, the place, and the number of times
// that the place was reached, so a seed has the same effect in each run. It yields, or sleeps in a system call. The
// system call takes real time even in a bubble of package testing/synctest, and the goroutine does not count as
// blocked.
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
	scheduleSeed, _ = strconv.ParseUint(os.Getenv("` + seedEnv + `"), 10, 64)
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
	files   int               // number of files in dir
	replace map[string]string // as in the overlay of the go command
	places  []string          // file:line:column of each pause
}

// textReplacement is new text for a part of a source.
type textReplacement struct {
	from, to int
	text     string
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
		text, places, err := insertPauses(path, src, len(r.places)-first)
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
// unlocks. Line numbers do not change.
func insertPauses(path string, src []byte, first int) (text string, places []string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	var in []textReplacement
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	pause := func(s ast.Node) (call string) {
		places = append(places, fset.Position(s.Pos()).String())
		return fmt.Sprintf("schedulePause(%d)", first+len(places)-1)
	}
	// address returns an expression for the address of the lock of a call, or "" if the lock has no plain path.
	address := func(call *ast.CallExpr) string {
		lock := call.Fun.(*ast.SelectorExpr).X
		if !isAddressable(lock) {
			return ""
		}
		return fmt.Sprintf("scheduleAddress(&%s)", src[offset(lock.Pos()):offset(lock.End())])
	}
	around := func(list []ast.Stmt) {
		for _, s := range list {
			for { // skip labels
				l, ok := s.(*ast.LabeledStmt)
				if !ok {
					break
				}
				s = l.Stmt
			}
			switch s := s.(type) {
			case *ast.ExprStmt:
				call, ok := s.X.(*ast.CallExpr)
				if !ok || !isLockCall(call) {
					continue
				}
				text, lock := string(src[offset(s.Pos()):offset(s.End())]), address(call)
				before := pause(s)
				switch {
				case lock != "" && isUnlockCall(call):
					before += fmt.Sprintf("; scheduleUnlock(%s)", lock)
				case lock != "":
					text = fmt.Sprintf("scheduleLock(%d, %s, %s)", first+len(places)-1, lock, strings.TrimSuffix(text, "()"))
				}
				in = append(in, textReplacement{offset(s.Pos()), offset(s.End()), before + "; " + text + "; " + pause(s)})
			case *ast.DeferStmt: // the last deferred call runs first
				if !isLockCall(s.Call) {
					continue
				}
				text, lock := string(src[offset(s.Pos()):offset(s.End())]), address(s.Call)
				before := "defer " + pause(s)
				if lock != "" && isUnlockCall(s.Call) {
					before += fmt.Sprintf("; defer scheduleUnlock(%s)", lock)
				}
				in = append(in, textReplacement{offset(s.Pos()), offset(s.End()), before + "; " + text + "; defer " + pause(s)})
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			around(n.List)
		case *ast.CaseClause:
			around(n.Body)
		case *ast.CommClause:
			around(n.Body)
		}
		return true
	})
	slices.SortFunc(in, func(a, b textReplacement) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	done := 0
	for _, i := range in {
		out.Write(src[done:i.from])
		out.WriteString(i.text)
		done = i.to
	}
	out.Write(src[done:])
	return out.String(), places, nil
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
