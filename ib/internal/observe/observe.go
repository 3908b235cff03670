// Package observe defines the types through which package ib reports calls, callbacks and the life cycle of objects to
// an observer. Package ib/check is the observer. The package is separate so that package ib exports fewer names.
package observe

// Set makes o the observer of the devices that are registered with core later. A nil o removes the observer. core is an
// *ib.Core, and o implements ib's interface observer. Of returns the subject of an object of package ib, or nil if the
// object is not observed. Package ib sets both variables.
var (
	Set func(core, o any)
	Of  func(o any) Subject
)

// Package ib/check sets Default, and package ib/ibtest/strict sets the others, before the program creates devices. All
// may be nil.
var (
	// Default returns the observer of a core for which Set was not called before its first device or client.
	Default func() any
	// NewDevice is called for each new device with its *ib.DeviceHandle.
	NewDevice func(h any)
	// AddFailed is called by package ib/check when an Add has returned an error.
	AddFailed func()
)

// CallKind is the kind of a call.
type CallKind uint8

const (
	Method   CallKind = iota // a function or method that may sleep
	Atomic                   // a function or method that may not sleep
	Destroy                  // a Method that destroys its subject and waits for the subject's callbacks
	Change                   // a Method that changes the memory of a region
	Callback                 // a consumer's event function, which may not sleep
	Handler                  // a completion handler, which may not sleep
	Client                   // a client's Add or Remove
	Register                 // Core.Register, Core.Unregister and their equivalents for clients
)

// Call is a call on a thread, or a callback that the thread runs.
type Call struct {
	Kind     CallKind
	What     string // such as "QP.PostSend"
	Arg      any    // Register: the *ib.Client, if the call is about a client; Callback: the ib.EventType
	Returned bool   // at Leave of a Callback or Handler: the function neither panicked nor ended its goroutine
	State    any    // for the observer
}

// SubjectEvent is an event of a subject.
type SubjectEvent uint8

const (
	Born         SubjectEvent = iota // the object has been created
	Died                             // the object has been destroyed
	Abandoned                        // the object may outlive its device
	Started                          // the device is registered; arg is an ObservationStart
	Removed                          // the Device no longer belongs to its client; arg names the client's function
	Unregistered                     // the device has no clients and runs no more callbacks
	// the thread will run callbacks of the device; arg is the *ib.Hold, nil for HoldCallbacks
	HoldBegins
	HoldEnds  // the hold is about to end
	Freed     // the driver is about to free the device, which is still registered
	Completed // CQHandle.Completed
	Raised    // the driver raises an event
)

// ObservationStart describes a device at the start of its observation.
type ObservationStart struct {
	Holds int    // number of holds; the observer may not have seen their HoldBegins
	Drop  func() // ends a hold of the device after its thread has ended
}

// QueueInfo describes a new queue.
type QueueInfo struct {
	User     bool // created by a user context, where the program posts and polls without a call
	Overruns bool // completions may be lost
}

// CallObserver receives the calls of a core's functions, or the calls on a Subject.
type CallObserver interface {
	// Enter is called when a thread begins a call. An error rejects the call. Package ib honours the error only for
	// Atomic, Destroy and Register. Leave follows in every case.
	Enter(c *Call) error
	Leave(c *Call)
}

// Subject is an observed handle of a device, object, or event function.
type Subject interface {
	CallObserver
	// RecordEvent reports an event. An error for Completed means that the completion must not be reported to the consumer.
	RecordEvent(e SubjectEvent, arg any) error
}
