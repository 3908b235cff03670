// Package gate provides the key to the functions of package ib for user contexts. internal/layers lists the
// packages that may import package gate.
package gate

// Key is the argument that ib.ForUser requires.
type Key struct{ valid bool }

// NewKey returns a key.
func NewKey() Key { return Key{valid: true} }

// MustBeValid panics for the zero Key, which is the only Key that other packages can make without NewKey.
func (k Key) MustBeValid() {
	if !k.valid {
		panic("gate: the key is not valid")
	}
}
