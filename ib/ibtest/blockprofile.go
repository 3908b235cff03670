package ibtest

import (
	"flag"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"verbena/ib"
	"verbena/ib/user"
)

// noSleepFunctions are the functions of the midlayer that call driver methods that may not sleep.
var noSleepFunctions = []string{
	"(*QP).PostSend", "(*QP).PostRecv", "(*QP).State", "(*SRQ).PostRecv", "(*CQ).Poll", "(*CQ).ReqNotify",
	"(*PD).CreateAH", "(*AH).Modify", "(*AH).Query", "(*AH).Destroy", "(*DeviceHandle).SetError",
}

// watchBlocking has the runtime record where goroutines block, and returns the test that looks at the records: a driver
// that waits for a channel or a condition in a method that may not sleep is found however short the wait.
func watchBlocking(t testing.TB, cfg config) func(t testing.TB) {
	if f := flag.Lookup("test.blockprofile"); f != nil && f.Value.String() != "" {
		return func(t testing.TB) { t.Skip("-blockprofile has the records") }
	}
	runtime.SetBlockProfileRate(1)
	t.Cleanup(func() { runtime.SetBlockProfileRate(0) })
	before := map[[32]uintptr]int64{}
	for _, r := range blockRecords() {
		before[r.Stack0] += r.Count
	}
	return func(t testing.TB) {
		d, _ := user.DriverAs[ib.Driver](cfg.newDevice(t).Device())
		drv := reflect.TypeOf(d)
		for drv.Kind() == reflect.Pointer {
			drv = drv.Elem()
		}
		for _, r := range blockRecords() {
			if r.Count > before[r.Stack0] {
				if stack := blockedIn(drv.PkgPath(), r.Stack()); stack != nil {
					t.Errorf("rule sleep-in-method: the driver waited in a method that may not sleep:\n\t%s", strings.Join(stack, "\n\t"))
				}
			}
		}
	}
}

func blockRecords() []runtime.BlockProfileRecord {
	for room := 100; ; {
		r := make([]runtime.BlockProfileRecord, room)
		n, ok := runtime.BlockProfile(r)
		if ok {
			return r[:n]
		}
		room = 2 * n
	}
}

// blockedIn returns the functions of a stack, innermost first, if it is of one that waits for more than a lock, in a
// function of the package, in a method that may not sleep.
func blockedIn(pkg string, pc []uintptr) (stack []string) {
	driver := false
	frames := runtime.CallersFrames(pc)
	for {
		f, more := frames.Next()
		stack = append(stack, f.Function)
		switch {
		case len(stack) == 2 && strings.HasPrefix(f.Function, "runtime."):
			return nil // the runtime's own business, such as starting a garbage collection
		case strings.HasPrefix(f.Function, "sync.(*Mutex)."), strings.HasPrefix(f.Function, "sync.(*RWMutex)."),
			strings.HasPrefix(f.Function, "internal/sync."):
			return nil
		case strings.HasPrefix(f.Function, pkg+"."):
			driver = true
		case isNoSleep(f.Function):
			if driver {
				return stack
			}
			return nil
		}
		if !more {
			return nil
		}
	}
}

func isNoSleep(function string) bool {
	for _, f := range noSleepFunctions {
		if strings.HasSuffix(function, "/ib."+f) {
			return true
		}
	}
	return false
}
