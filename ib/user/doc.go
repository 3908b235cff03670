// Package user is the midlayer's interface for user contexts: the calls of package ib with what a program adds to them, the
// private data between its library and the driver ([ib.Udata]). It is for package uverbs alone; internal/layers forbids it to
// others, tests excepted.
//
// Where a function takes the same arguments as that of package ib, that is where it is described. Addresses are exact here:
// a program may well ask for a region that begins at address 0.
package user
