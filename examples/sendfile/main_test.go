package main

import (
	"bytes"
	"testing"
)

// TestTransfer checks files shorter than a part, of several parts, and of more parts than may be in flight.
func TestTransfer(t *testing.T) {
	for _, n := range []int{1, partSize, partSize + 1, 40*partSize + 12345} {
		contents := make([]byte, n)
		for i := range contents {
			contents[i] = byte(i * 31 >> 3)
		}
		got, err := transferFile(t.Context(), contents)
		if err != nil || !bytes.Equal(got, contents) {
			t.Errorf("%d bytes: %d arrived, %v", n, len(got), err)
		}
	}
}
