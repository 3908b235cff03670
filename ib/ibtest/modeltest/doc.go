// Package modeltest compares a device with the reference model of package model: it draws calls from a seed, makes
// them on both, and compares results, completions, states, memory, events and notifications after each call. A
// failing run is shortened before it is reported.
//
// Package ibtest makes it part of its suite; a driver has no need to import it.
package modeltest
