// Package states is the life of a device, of an object on it, and of a program's context, as values. Each transition is
// a function without side effects, which package ib and package uverbs apply to a word, and which TestExplore applies
// in every order that a program, a reset and a second one can: a device fails, its contexts become zombies, it goes,
// and comes again, while programs open, close, make, destroy and post.
package states

import "sync/atomic"

// Step makes a transition of a word, at once, and returns what it says.
func Step[S ~int32](word *atomic.Int32, f func(S) (S, bool)) (yes bool) {
	for {
		old := word.Load()
		next, yes := f(S(old))
		if int32(next) == old || word.CompareAndSwap(old, int32(next)) {
			return yes
		}
	}
}

// Device is where a device stands.
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

// Register makes the device usable, false if it has been before.
func (d Device) Register() (next Device, ok bool) {
	if d != DeviceNew {
		return d, false
	}
	return DeviceActive, true
}

// Fail takes an active device to the error state, and returns whether its driver is to be told.
func (d Device) Fail() (next Device, tell bool) {
	if d != DeviceActive {
		return d, false
	}
	return DeviceError, true
}

// Unregister is the end of the device.
func (d Device) Unregister() (Device, bool) { return DeviceGone, true }

// Makes reports whether objects can be made.
func (d Device) Makes() bool { return d == DeviceActive }

// Object is how many others refer to an object while it is alive, or one of the states below.
//
//	alive --End--> ending --Ended--> ended
//	  ^              |
//	  +----Refused---+
type Object int32

const (
	ObjectEnding Object = -1 - iota
	ObjectEnded
)

// Alive reports whether the object can be used.
func (o Object) Alive() bool { return o >= 0 }

// Get counts one that refers to the object, false if it is not alive.
func (o Object) Get() (next Object, ok bool) {
	if o < 0 {
		return o, false
	}
	return o + 1, true
}

// Put takes Get back.
func (o Object) Put() (Object, bool) { return o - 1, true }

// End begins the end of the object, false if another has, or others refer to it.
func (o Object) End() (next Object, ok bool) {
	if o != 0 {
		return o, false
	}
	return ObjectEnding, true
}

// Refused says that the driver keeps the object.
func (o Object) Refused() (Object, bool) { return 0, true }

// Ended says that the driver has let the object go.
func (o Object) Ended() (Object, bool) { return ObjectEnded, true }

// Context is where an open device file stands.
//
//	fresh --Open--> opening --Commit--> live
//	  ^                |
//	  +-----Abort------+      from each of these: Disassociate --> zombie; from these and zombie: Close --> closed
//
// Zombie and closed begin with the end of the context, not after it.
type Context int32

const (
	ContextFresh   Context = iota
	ContextOpening         // GET_CONTEXT has not been answered yet
	ContextLive
	ContextZombie
	ContextClosed
)

// Open makes a context, false if there is one, or the device or the file has gone: then what the driver has is to be
// taken back.
func (c Context) Open() (next Context, ok bool) {
	if c != ContextFresh {
		return c, false
	}
	return ContextOpening, true
}

// Commit says that the program knows of its context.
func (c Context) Commit() (next Context, ok bool) {
	if c != ContextOpening {
		return c, false
	}
	return ContextLive, true
}

// Abort says that it does not, and returns whether what the driver has is to be taken back; else who ends the context
// does that.
func (c Context) Abort() (next Context, undo bool) {
	if c != ContextOpening {
		return c, false
	}
	return ContextFresh, true
}

// Disassociate says that the device goes, and returns whether the end of the context begins with that.
func (c Context) Disassociate() (next Context, begin bool) {
	if c == ContextClosed || c == ContextZombie {
		return c, false
	}
	return ContextZombie, true
}

// Close says that the file has been closed, and returns whether that is the first time.
func (c Context) Close() (next Context, first bool) { return ContextClosed, c != ContextClosed }

// Makes reports whether objects can be made in the context.
func (c Context) Makes() bool { return c == ContextLive }
