// Package held_dispatch has functions of a table that want a lock, which the caller of the table takes.
package held_dispatch

import "sync"

type File struct {
	mu sync.Mutex
	n  int
}

//verbena:held mu
func (f *File) count() { f.n++ }

func first(f *File)  { f.count() }
func second(f *File) { third(f) }
func third(f *File)  { f.count() }

var table = []func(*File){first, second}

// Run runs a command.
func (f *File) Run(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	table[i](f)
}
