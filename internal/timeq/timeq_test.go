package timeq_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"verbena/internal/timeq"
)

var startTime = time.Unix(1_000_000, 0)

// TestQueue compares a queue with a sorted list.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type entry struct {
			due time.Time
			seq int
			it  *timeq.Item[int]
		}
		var q timeq.Queue[int]
		var model []entry
		seq := 0
		sorted := func() []entry {
			slices.SortStableFunc(model, func(a, b entry) int {
				if c := a.due.Compare(b.due); c != 0 {
					return c
				}
				return a.seq - b.seq
			})
			return model
		}
		at := func() time.Time {
			return startTime.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "due")) * time.Second)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				seq++
				e := entry{due: at(), seq: seq}
				e.it = q.Push(e.due, seq)
				model = append(model, e)
			},
			"pop": func(t *rapid.T) {
				i := q.Pop()
				if len(model) == 0 {
					if i != nil {
						t.Fatalf("Pop of an empty queue: got %v, want nil", i.Value)
					}
					return
				}
				if want := sorted()[0]; i != want.it || i.IsQueued() {
					t.Fatalf("Pop: got %v, want %v", i.Value, want.it.Value)
				}
				model = model[1:]
			},
			"move": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				k := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				seq++
				model[k].due, model[k].seq = at(), seq
				q.Put(model[k].it, model[k].due)
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				k := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				it := model[k].it
				if !q.Remove(it) || q.Remove(it) {
					t.Fatal("Remove of a queued item: got another result, want true and then false")
				}
				model = slices.Delete(model, k, k+1)
			},
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
					t.Skip()
				}
				q.Clear()
				model = nil
			},
			"": func(t *rapid.T) {
				if q.Len() != len(model) {
					t.Fatalf("Len: got %d, want %d", q.Len(), len(model))
				}
				if first := q.First(); len(model) > 0 && (first != sorted()[0].it || !first.Due().Equal(sorted()[0].due)) ||
					len(model) == 0 && first != nil {
					t.Fatalf("First: got %+v, want the first of %v", first, model)
				}
				n := 0
				for i := range q.All() {
					if !i.IsQueued() {
						t.Fatal("Queued of an item of the queue: got false, want true")
					}
					n++
				}
				if n != len(model) {
					t.Fatalf("All: got %d items, want %d", n, len(model))
				}
			},
		})
	})
}
