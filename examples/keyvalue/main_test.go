package main

import (
	"errors"
	"fmt"
	"testing"
)

// TestGetFindsEveryKey checks that look-ups find every key, also after other keys with the same hash, and no missing
// key.
func TestGetFindsEveryKey(t *testing.T) {
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprint(i))
	}
	values, err := run(t.Context(), keys...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if v != fmt.Sprint(i*i) {
			t.Errorf("%d: got %s", i, v)
		}
	}
	if _, err := run(t.Context(), "40"); !errors.Is(err, errNotFound) {
		t.Errorf("run with a missing key: got %v, want %v", err, errNotFound)
	}
}

func Example() {
	main()
	// Output: [49 121 1521]
}
