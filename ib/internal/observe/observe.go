// Package observe has the types by which package ib reports calls, callbacks and the life of objects to an observer. Package ib/check
// is the observer. The package is apart from ib so that an observer costs no exported name there.
package observe

// Set makes o the observer of the devices that are registered with a core from now on; nil ends that. core is an *ib.Core, and o
// implements ib's observer. Of returns the subject of an object of package ib, nil if it is not observed. Package ib provides both.
var (
	Set func(core, o any)
	Of  func(o any) Subject
)

// Kind is the kind of a call.
type Kind uint8

const (
	Method   Kind = iota // a function or method that may sleep
	Atomic               // a function or method that may not sleep
	Destroy              // a Method that ends its subject, and waits for the callbacks of it
	Change               // a Method that changes the memory of a region
	Callback             // a consumer's function for events, which may not sleep
	Handler              // the same for completions
	Client               // a client's Add or Remove
	Register             // Core.Register, Core.Unregister and their like for clients
)

// Call is a call that a thread makes, or a callback that it runs.
type Call struct {
	Kind     Kind
	What     string // such as "QP.PostSend"
	Arg      any    // Register: the *ib.Client, if it is of one; Callback: the ib.EventType
	Returned bool   // at Leave of a Callback or Handler: it did not panic or end its goroutine
	State    any    // the observer's own
}

// Event is something that happens to a subject at once.
type Event uint8

const (
	Born         Event = iota // the object has been made
	Died                      // the object has been destroyed
	Abandoned                 // the object may outlive its device
	Started                   // the device is registered; arg is a Start
	Removed                   // the Device is no longer its client's; arg is the string that names the client's function
	Unregistered              // the device has no clients and runs no callbacks any more
	HoldBegins                // the thread will run callbacks of the device; arg is the *ib.Hold, nil for HoldCallbacks
	HoldEnds                  // it is about to
	Freed                     // the driver is about to free the device, which is registered
	Completed                 // CQHandle.Completed
	Raised                    // the driver raises an event
)

// Start describes a device at the moment when its observation starts.
type Start struct {
	Holds int    // threads that will run callbacks, and whose HoldBegins it has perhaps not seen
	Drop  func() // ends a hold of the device whose thread cannot
}

// Made describes how a queue was made.
type Made struct {
	User     bool // by a user context, whose program posts and polls without a call
	Overruns bool // completions may be lost
}

// Calls follows calls: those of a core's functions, or those on a Subject.
type Calls interface {
	// Enter is called when a thread begins a call. An error refuses the call; ib heeds it only of Atomic, Destroy and Register. Leave
	// follows in every case.
	Enter(c *Call) error
	Leave(c *Call)
}

// Subject follows a device as one of its consumers sees it, an object, or a function for events.
type Subject interface {
	Calls
	// Note reports an event. An error from Completed says that it is not for the consumer.
	Note(e Event, arg any) error
}
