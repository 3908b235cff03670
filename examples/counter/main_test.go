package main

import (
	"testing"

	"verbena/verbs/embed"
)

func TestCounterReachesSum(t *testing.T) {
	stack, err := embed.NewSoftware()
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	dev, err := stack.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if n, err := runCounter(dev, 4, 200); err != nil || n != 800 {
		t.Errorf("count: got %d, %v, want 800", n, err)
	}
}
