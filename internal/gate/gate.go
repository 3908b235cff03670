// Package gate has the key to the calls of package ib for user contexts. internal/layers lists the packages that may
// import it.
package gate

// Key opens ib.ForUser.
type Key struct{ valid bool }

// Open returns a key.
func Open() Key { return Key{valid: true} }

// Check panics for the zero Key, the only one that other packages can come by.
func (k Key) Check() {
	if !k.valid {
		panic("gate: the key is not valid")
	}
}
