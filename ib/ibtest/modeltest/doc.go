// Package modeltest compares a device with the reference model of package model. It draws calls from a seed, makes them
// on both, and compares results, completions, states, memory, events and notifications after each call. A failing run
// is shortened before it is reported.
//
// Package ibtest includes it in its suite, so a driver need not import it.
package modeltest
