//go:build race

package check

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// raceDetector reports whether the race detector observes the program.
const raceDetector = true

// ownership makes the memory of an outstanding request belong to the device, for the race detector. The device's access
// is concurrent with everything between the post and the poll of the completion. An access of the consumer in this time
// is a data race.
type ownership struct {
	begun, ended bool
	accessed     bool // read and written without synchronisation
	token        uint64
}

// accesses is the token of the accesses of all requests.
var accesses uint64

// begun is the number of accesses that have begun and not ended.
var begun atomic.Int64

// allowed holds the goroutines that have called AllowAccess. anyAllowed reports whether there are some.
var (
	allowed    sync.Map
	anyAllowed atomic.Bool
)

// AllowAccess permits the calling goroutine, for the race detector, to access the memory of the present requests, and
// of the requests that it will post. AllowAccess may not sleep.
func AllowAccess() {
	allowed.Store(observe.GoroutineID(), nil)
	anyAllowed.Store(true)
	runtime.RaceDisable()
	for begun.Load() > 0 {
		runtime.Gosched()
	}
	runtime.RaceEnable()
	runtime.RaceAcquire(unsafe.Pointer(&accesses))
}

// beginOwnership begins the access of the device, if ownership is on. The caller is about to post the request.
func (r *trackedRequest) beginOwnership(on bool) {
	if !on || len(r.owned) == 0 && len(r.read) == 0 {
		return
	}
	if anyAllowed.Load() {
		if _, yes := allowed.Load(observe.GoroutineID()); yes {
			return
		}
	}
	r.race.begun = true
	runtime.RaceDisable() // the counter must not synchronise threads
	begun.Add(1)
	runtime.RaceEnable()
	go deviceAccess(r)
}

// deviceAccess accesses the memory as the device does. The reports of the race detector name beginOwnership.
func deviceAccess(r *trackedRequest) {
	for _, s := range r.owned {
		runtime.RaceWriteRange(addressOf(s.addr), int(s.n))
	}
	for _, s := range r.read {
		runtime.RaceReadRange(addressOf(s.addr), int(s.n))
	}
	runtime.RaceReleaseMerge(unsafe.Pointer(&r.race.token))
	runtime.RaceReleaseMerge(unsafe.Pointer(&accesses))
	markAccessed(r)
	runtime.RaceDisable()
	begun.Add(-1)
	runtime.RaceEnable()
}

// addressOf returns a pointer to memory of a registered region.
func addressOf(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

//go:norace
func markAccessed(r *trackedRequest) { r.race.accessed = true }

//go:norace
func hasAccessed(r *trackedRequest) bool { return r.race.accessed }

// endOwnership returns the memory of the request to the calling thread.
func (r *trackedRequest) endOwnership() {
	if !r.race.begun || r.race.ended {
		return
	}
	r.race.ended = true
	for !hasAccessed(r) {
		runtime.Gosched()
	}
	runtime.RaceAcquire(unsafe.Pointer(&r.race.token))
}

// overwriteCompletions writes the polled completions again, for the race detector, which does not observe the driver. A
// thread that still uses the former contents of the array is a data race with this function.
//
//go:noinline
func overwriteCompletions(wcs []ib.WC) {
	for i := range wcs {
		c := wcs[i]
		wcs[i] = c
	}
}
