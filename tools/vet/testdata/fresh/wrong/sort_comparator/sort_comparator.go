// Package sort_comparator: the handler sorts by a comparator that asks the file system.
package sort_comparator

import (
	"cmp"
	"os"
	"slices"

	"verbena/ib"
)

type File struct {
	name string
	id   uint64
}

type Index struct{ files []File }

func newer(a, b File) int {
	x, err := os.Stat(a.name) // want "nosleep"
	if err != nil {
		return -1
	}
	return cmp.Compare(uint64(x.Size()), b.id)
}

// Open makes the queue.
func (x *Index) Open(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: x.arrived})
}

func (x *Index) arrived(*ib.CQ) {
	slices.SortFunc(x.files, newer)
}
