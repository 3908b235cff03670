package main

import (
	"strings"
	"testing"
	"time"

	"verbena/internal/fault"
)

// TestLinkSetFlagsGiveShape tests the shapes that flags describe, including flags that remove a shape. A seed without
// another flag describes no shape, so the request is refused.
func TestLinkSetFlagsGiveShape(t *testing.T) {
	for line, want := range map[string]*fault.Shape{
		"down":                    nil,
		"--mtu 1024":              nil,
		"--rate none":             {},
		"--delay 0":               {},
		"--delay 0s":              {},
		"--loss 0":                {},
		"--loss 0%":               {},
		"--rate 1Kbit --delay 0":  {Rate: 1000},
		"--delay 20us --loss 1%":  {Delay: 20 * time.Microsecond, Loss: 0.01},
		"--seed 7":                {Seed: 7},
		"--loss 0.5 --seed 7":     {Loss: 0.5, Seed: 7},
		"--rate 1Gbit --queue 9p": {Rate: 1e9, QueuePackets: 9},
	} {
		var c cli
		if _, err := newParser(&c).Parse(append([]string{"link", "set", "rxe0"}, strings.Fields(line)...)); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		got := c.Link.Set.shapeFromFlags()
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: got %+v, want %+v", line, got, want)
		}
	}
}
