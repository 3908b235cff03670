// Package sort_comparator_pure: the handler sorts by a comparator of numbers; who has time sorts by one that asks the file system.
package sort_comparator_pure

import (
	"cmp"
	"os"
	"slices"

	"verbena/ib"
)

type file struct {
	name string
	id   uint64
}

type Index struct{ files []file }

func byID(a, b file) int { return cmp.Compare(a.id, b.id) }

// Open makes the queue.
func (x *Index) Open(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: x.arrived})
}

func (x *Index) arrived(*ib.CQ) {
	slices.SortFunc(x.files, byID)
}

// Load loads the index.
func (x *Index) Load(dir string) error {
	all, err := os.ReadDir(dir)
	for i, e := range all {
		x.files = append(x.files, file{e.Name(), uint64(i)})
	}
	slices.SortFunc(x.files, bySize)
	return err
}

func bySize(a, b file) int {
	x, err := os.Stat(a.name)
	y, err2 := os.Stat(b.name)
	if err != nil || err2 != nil {
		return 0
	}
	return cmp.Compare(x.Size(), y.Size())
}
