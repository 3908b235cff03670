package ibtest

import (
	"flag"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// noSleepFunctions lists the functions of the midlayer that call driver methods that may not sleep.
var noSleepFunctions = []string{
	"(*QP).PostSend", "(*QP).PostRecv", "(*QP).State", "(*SRQ).PostRecv", "(*CQ).Poll", "(*CQ).ReqNotify",
	"(*PD).CreateAH", "(*AH).Modify", "(*AH).Query", "(*AH).Destroy", "(*DeviceHandle).SetError",
}

// watchBlockProfile enables the runtime's block profile. The returned function checks it. This finds a driver that
// waits for a channel or a condition in a method that may not sleep, even if the wait is very short.
func watchBlockProfile(t testing.TB, cfg suiteConfig) func(t testing.TB) {
	if f := flag.Lookup("test.blockprofile"); f != nil && f.Value.String() != "" {
		return func(t testing.TB) { t.Skip("-blockprofile has the records") }
	}
	runtime.SetBlockProfileRate(1)
	t.Cleanup(func() { runtime.SetBlockProfileRate(0) })
	before := map[[32]uintptr]int64{}
	for _, r := range readBlockProfile() {
		before[r.Stack0] += r.Count
	}
	return func(t testing.TB) {
		for _, r := range readBlockProfile() {
			if r.Count <= before[r.Stack0] {
				continue
			}
			if stack := blockedDriverStack(cfg.packages, r.Stack()); stack != nil {
				t.Errorf("rule sleep-in-method: the driver waited in a method that may not sleep:\n\t%s",
					strings.Join(stack, "\n\t"))
			}
		}
	}
}

// driverPackageSet is the set of packages of the types of a driver and its objects.
type driverPackageSet struct {
	mu   sync.Mutex
	seen map[reflect.Type]bool
	all  []string
}

// addTypeOf adds the packages of x and of the values that it wraps (see ib.As).
func (p *driverPackageSet) addTypeOf(x any) {
	for x != nil {
		t := reflect.TypeOf(x)
		next := reflect.ValueOf(x).MethodByName("Unwrap")
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		p.mu.Lock()
		if p.seen == nil {
			p.seen = map[reflect.Type]bool{}
		}
		if !p.seen[t] {
			p.seen[t] = true
			if path := t.PkgPath(); path != "" && !slices.Contains(p.all, path) {
				p.all = append(p.all, path)
			}
		}
		p.mu.Unlock()
		if !next.IsValid() || next.Type().NumIn() != 0 || next.Type().NumOut() != 1 {
			return
		}
		x = next.Call(nil)[0].Interface()
	}
}

// containsFunction reports whether a function belongs to one of the packages, or to a package below one.
func (p *driverPackageSet) containsFunction(function string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.all, func(path string) bool {
		rest, ok := strings.CutPrefix(function, path)
		return ok && rest != "" && (rest[0] == '.' || rest[0] == '/')
	})
}

func readBlockProfile() []runtime.BlockProfileRecord {
	for room := 100; ; {
		r := make([]runtime.BlockProfileRecord, room)
		n, ok := runtime.BlockProfile(r)
		if ok {
			return r[:n]
		}
		room = 2 * n
	}
}

// blockedDriverStack returns the functions of a stack, innermost first, if a function of the driver waits for something
// other than a lock in a method that may not sleep.
func blockedDriverStack(driver *driverPackageSet, pc []uintptr) (stack []string) {
	inside := false
	frames := runtime.CallersFrames(pc)
	for {
		f, more := frames.Next()
		stack = append(stack, f.Function)
		switch {
		case len(stack) == 2 && strings.HasPrefix(f.Function, "runtime."):
			return nil // internal to the runtime, such as the start of a garbage collection
		case strings.HasPrefix(f.Function, "sync.(*Mutex)."), strings.HasPrefix(f.Function, "sync.(*RWMutex)."),
			strings.HasPrefix(f.Function, "internal/sync."):
			return nil
		case isNoSleepFunction(f.Function):
			if inside {
				return stack
			}
			return nil
		case driver.containsFunction(f.Function):
			inside = true
		}
		if !more {
			return nil
		}
	}
}

func isNoSleepFunction(function string) bool {
	for _, f := range noSleepFunctions {
		if strings.HasSuffix(function, "/ib."+f) {
			return true
		}
	}
	return strings.HasSuffix(function, "/ibtest.doorbell") || strings.HasSuffix(function, "/ibtest.posted")
}
