// Package observe defines the types with which package ib reports calls, callbacks and the life cycle of objects to an
// observer. Package ib/check is the observer. The package is separate from ib to keep the exported names of ib few.
package observe

// Set makes o the observer of devices that are registered with a core later; nil removes it. core is an *ib.Core, and o
// implements ib's observer. Of returns the subject of an object of package ib, or nil if it is not observed. Package ib
// sets both variables.
var (
	Set func(core, o any)
	Of  func(o any) Subject
)

// Kind is the kind of a call.
type Kind uint8

const (
	Method   Kind = iota // a function or method that may sleep
	Atomic               // a function or method that may not sleep
	Destroy              // a Method that destroys its subject and waits for the subject's callbacks
	Change               // a Method that changes the memory of a region
	Callback             // a consumer's event function, which may not sleep
	Handler              // a completion handler, which may not sleep
	Client               // a client's Add or Remove
	Register             // Core.Register, Core.Unregister, and the same for clients
)

// Call is a call by a thread, or a callback that it runs.
type Call struct {
	Kind     Kind
	What     string // such as "QP.PostSend"
	Arg      any    // Register: the *ib.Client, for calls about a client; Callback: the ib.EventType
	Returned bool   // at Leave of a Callback or Handler: it neither panicked nor ended its goroutine
	State    any    // for the observer
}

// Event is an event of a subject.
type Event uint8

const (
	Born         Event = iota // the object has been created
	Died                      // the object has been destroyed
	Abandoned                 // the object may outlive its device
	Started                   // the device is registered; arg is a Start
	Removed                   // the Device no longer belongs to its client; arg names the client's function
	Unregistered              // the device has no clients and runs no more callbacks
	HoldBegins                // the thread will run callbacks of the device; arg is the *ib.Hold, nil for HoldCallbacks
	HoldEnds                  // the hold is about to end
	Freed                     // the driver is about to free the device, which is still registered
	Completed                 // CQHandle.Completed
	Raised                    // the driver raises an event
)

// Start describes a device when its observation starts.
type Start struct {
	Holds int    // number of holds, whose HoldBegins the observer may not have seen
	Drop  func() // ends a hold of the device after the end of the holding thread
}

// Made describes a new queue.
type Made struct {
	User     bool // by a user context: the program posts and polls without a call
	Overruns bool // completions may be lost
}

// Calls receives the calls of a core's functions, or the calls on a Subject.
type Calls interface {
	// Enter is called when a thread begins a call. An error rejects the call; ib ignores it except for Atomic, Destroy
	// and Register. Leave follows in every case.
	Enter(c *Call) error
	Leave(c *Call)
}

// Subject is an observed handle of a device, object, or event function.
type Subject interface {
	Calls
	// Note reports an event. An error for Completed means that the completion must not be reported to the consumer.
	Note(e Event, arg any) error
}
