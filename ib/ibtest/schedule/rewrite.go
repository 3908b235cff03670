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
)

// locking lists the methods around which a rewritten source pauses.
var locking = []string{"Lock", "Unlock", "RLock", "RUnlock"}

// pauses is a file added to each rewritten package. A pause depends on the seed, the place, and the number of times
// that the place was reached, so a seed has the same effect in each run. It yields, or sleeps in a system call. The
// system call takes real time even in a bubble of package testing/synctest, and the goroutine does not count as
// blocked.
const pauses = `
import (
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
)

var (
	scheduleSeed, _ = strconv.ParseUint(os.Getenv("` + seedVariable + `"), 10, 64)
	scheduleReached [%d]atomic.Uint64
)

func schedulePause(place int) {
	if scheduleSeed == 0 {
		return
	}
	x := scheduleSeed*0x9e3779b97f4a7c15 ^ uint64(place)<<40 ^ scheduleReached[place].Add(1)
	for range 2 {
		x = (x ^ x>>31) * 0xbf58476d1ce4e5b9
		x ^= x >> 29
	}
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
`

// weakDevices is a file added to each package of -weak. Its devices have no slow methods: in a bubble of package
// testing/synctest time does not advance while one goroutine sleeps and another waits for a lock that the first one
// holds, which is allowed.
const weakDevices = `
import (
	"os"
	"strconv"

	"verbena/ib"
	"verbena/ib/weak"
)

func scheduleNewDevice(name string, d ib.Driver, logf func(string, ...any)) *ib.DeviceHandle {
	h := ib.NewDevice(name, d, logf)
	if seed, err := strconv.ParseUint(os.Getenv("` + seedVariable + `"), 10, 64); err == nil {
		h.Wrap(func(d ib.Driver) ib.Driver { return weak.New(d, weak.Config{Seed: seed, Choices: weak.All &^ weak.Of(weak.SlowMethods)}) })
	}
	return h
}
`

// newDevice is the driver's call that weaken replaces.
const newDevice = "ib.NewDevice("

// weaken adds a package with weak devices to the overlay.
func (r *rewriter) weaken(name, folder string, files []string) error {
	found := false
	for _, f := range files {
		path := filepath.Join(folder, f)
		src, err := r.source(path)
		if err != nil {
			return err
		}
		if !strings.Contains(string(src), newDevice) {
			continue
		}
		found = true
		if err := r.add(path, strings.ReplaceAll(string(src), newDevice, "scheduleNewDevice(")); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s: no call of ib.NewDevice", folder)
	}
	return r.add(filepath.Join(folder, "schedule_weak.go"), "package "+name+"\n"+weakDevices)
}

// seedVariable is the environment variable with the seed of a run. Package ibtest uses it to detect that methods sleep.
const seedVariable = "SCHEDULE_SEED"

// rewriter creates an overlay of sources with pauses.
type rewriter struct {
	dir     string            // for the new files
	files   int               // number of files in dir
	replace map[string]string // as in the overlay of the go command
	places  []string          // file:line:column of each pause
}

// insertion is text to insert into a source.
type insertion struct {
	at   int
	text string
}

// source returns the content of a file, which the overlay may have replaced already.
func (r *rewriter) source(file string) ([]byte, error) {
	if other, ok := r.replace[file]; ok {
		file = other
	}
	return os.ReadFile(file)
}

// rewrite adds a package to the overlay.
func (r *rewriter) rewrite(name, folder string, files []string) error {
	first := len(r.places)
	for _, f := range files {
		path := filepath.Join(folder, f)
		src, err := r.source(path)
		if err != nil {
			return err
		}
		text, places, err := withPauses(path, src, len(r.places)-first)
		if err != nil {
			return err
		}
		if len(places) == 0 {
			continue
		}
		r.places = append(r.places, places...)
		if err := r.add(path, text); err != nil {
			return err
		}
	}
	if len(r.places) == first {
		return fmt.Errorf("%s: no locks", folder)
	}
	return r.add(filepath.Join(folder, "schedule_pause.go"), "package "+name+"\n"+fmt.Sprintf(pauses, len(r.places)-first))
}

func (r *rewriter) add(path, text string) error {
	r.files++
	to := filepath.Join(r.dir, fmt.Sprintf("%d_%s", r.files, filepath.Base(path)))
	r.replace[path] = to
	return os.WriteFile(to, []byte(text), 0o644)
}

// overlay writes the list of replaced files.
func (r *rewriter) overlay() (string, error) {
	b, err := json.Marshal(map[string]any{"Replace": r.replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(r.dir, "overlay.json")
	return file, os.WriteFile(file, b, 0o644)
}

// withPauses returns a source with pauses, numbered from first, before and after each statement that locks or unlocks.
// Line numbers do not change.
func withPauses(path string, src []byte, first int) (text string, places []string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	var in []insertion
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	pause := func(s ast.Node) (call string) {
		places = append(places, fset.Position(s.Pos()).String())
		return fmt.Sprintf("schedulePause(%d)", first+len(places)-1)
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
				if call, ok := s.X.(*ast.CallExpr); ok && locks(call) {
					in = append(in, insertion{offset(s.Pos()), pause(s) + "; "}, insertion{offset(s.End()), "; " + pause(s)})
				}
			case *ast.DeferStmt: // the last deferred call runs first
				if locks(s.Call) {
					in = append(in, insertion{offset(s.Pos()), "defer " + pause(s) + "; "},
						insertion{offset(s.End()), "; defer " + pause(s)})
				}
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
	slices.SortStableFunc(in, func(a, b insertion) int { return cmp.Compare(a.at, b.at) })
	var out strings.Builder
	done := 0
	for _, i := range in {
		out.Write(src[done:i.at])
		out.WriteString(i.text)
		done = i.at
	}
	out.Write(src[done:])
	return out.String(), places, nil
}

// locks reports whether a call locks or unlocks.
func locks(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && len(call.Args) == 0 && slices.Contains(locking, s.Sel.Name)
}
