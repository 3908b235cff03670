package main

import "testing"

// TestExchangedMessagesArrive checks that messages arrive, both as packets on a network in memory and over the
// shortcut.
func TestExchangedMessagesArrive(t *testing.T) {
	*n, *addr = 100, "127.0.0.106"
	for _, w := range []bool{false, true} {
		if *wire = w; exchangeMessages() <= 0 {
			t.Error("exchange: got duration 0")
		}
	}
}
