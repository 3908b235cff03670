// Package states represents the states of a device, of an object on the device, and of a program's context as
// values. Each transition is a function without side effects. Packages ib and uverbs apply a transition to a word.
// TestExplore applies the transitions in each possible order of a program and two resets. In a reset, a device
// fails, its contexts become zombies, it is unregistered, and it is registered again. Meanwhile programs open,
// close, make, destroy and post.
package states

import "sync/atomic"

// ApplyTransition applies a transition to a word atomically, and returns its result.
func ApplyTransition[S ~int32](word *atomic.Int32, f func(S) (S, bool)) (yes bool) {
	for {
		old := word.Load()
		next, yes := f(S(old))
		if int32(next) == old || word.CompareAndSwap(old, int32(next)) {
			return yes
		}
	}
}

// Device is the state of a device.
//
//	new --Register--> active --Fail--> error
//	                     |               |
//	                     +--Unregister---+--> gone
type Device int32

const (
	DeviceNew Device = iota
	DeviceActive
	DeviceError
	DeviceGone
)

// Register makes the device usable. Register returns false if the device was registered before.
func (d Device) Register() (next Device, ok bool) {
	if d != DeviceNew {
		return d, false
	}
	return DeviceActive, true
}

// Fail takes an active device to the error state, and returns whether to report the error to its driver.
func (d Device) Fail() (next Device, tell bool) {
	if d != DeviceActive {
		return d, false
	}
	return DeviceError, true
}

// Unregister ends the device.
func (d Device) Unregister() (Device, bool) { return DeviceGone, true }

// CanCreate reports whether objects can be made on the device.
func (d Device) CanCreate() bool { return d == DeviceActive }

// Object is the number of references to an object while the object is alive, or one of the states below.
//
//	alive --End--> ending --Ended--> ended
//	  ^              |
//	  +----Refused---+
type Object int32

const (
	ObjectEnding Object = -1 - iota
	ObjectEnded
)

// IsAlive reports whether the object can be used.
func (o Object) IsAlive() bool { return o >= 0 }

// Get adds a reference to the object. It returns false if the object is not alive.
func (o Object) Get() (next Object, ok bool) {
	if o < 0 {
		return o, false
	}
	return o + 1, true
}

// Put removes a reference.
func (o Object) Put() (Object, bool) { return o - 1, true }

// BeginDestroy begins the end of the object. BeginDestroy returns false if the end has already begun, or if there are
// references.
func (o Object) BeginDestroy() (next Object, ok bool) {
	if o != 0 {
		return o, false
	}
	return ObjectEnding, true
}

// Refused records that the driver refused to destroy the object.
func (o Object) Refused() (Object, bool) { return 0, true }

// FinishDestroy records that the driver has destroyed the object.
func (o Object) FinishDestroy() (Object, bool) { return ObjectEnded, true }

// Context is the state of an open device file.
//
//	fresh --Open--> opening --Commit--> live
//	  ^                |
//	  +-----Abort------+      from each of these: Disassociate --> zombie; from these and zombie: Close --> closed
//
// The states zombie and closed begin before the end of the context, not after it.
type Context int32

const (
	ContextFresh   Context = iota
	ContextOpening         // GET_CONTEXT was not answered yet
	ContextLive
	ContextZombie
	ContextClosed
)

// Open makes a context. Open returns false if the file already has a context, or if the device was removed or the
// file closed. If Open returns false, the caller must deallocate the driver's context.
func (c Context) Open() (next Context, ok bool) {
	if c != ContextFresh {
		return c, false
	}
	return ContextOpening, true
}

// Commit records that the program has received its context.
func (c Context) Commit() (next Context, ok bool) {
	if c != ContextOpening {
		return c, false
	}
	return ContextLive, true
}

// Abort records that the program has not received its context, and returns whether the caller must deallocate the
// driver's context. If the caller need not, the end of the context deallocates it.
func (c Context) Abort() (next Context, undo bool) {
	if c != ContextOpening {
		return c, false
	}
	return ContextFresh, true
}

// Disassociate records that the device is removed, and returns whether the caller must end the context.
func (c Context) Disassociate() (next Context, begin bool) {
	if c == ContextClosed || c == ContextZombie {
		return c, false
	}
	return ContextZombie, true
}

// Close records that the file was closed, and returns whether this was the first close.
func (c Context) Close() (next Context, first bool) { return ContextClosed, c != ContextClosed }

// CanCreate reports whether objects can be made in the context.
func (c Context) CanCreate() bool { return c == ContextLive }
