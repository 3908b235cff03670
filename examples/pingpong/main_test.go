package main

import "testing"

// The messages arrive, by packets in memory as by the shortcut.
func TestExchange(t *testing.T) {
	*n, *addr = 100, "127.0.0.106"
	for _, w := range []bool{false, true} {
		if *wire = w; exchange() <= 0 {
			t.Error("no time has passed")
		}
	}
}
