// Package gate has the key to what package ib offers to ib/user alone.
package gate

// Key opens [verbena/ib.ForUser]. Only packages below verbena/ib can make one that does.
type Key struct{ valid bool }

// Open returns a key.
func Open() Key { return Key{valid: true} }

// Check panics for the zero Key, the only one that other packages can come by.
func (k Key) Check() {
	if !k.valid {
		panic("gate: the key is not valid")
	}
}
