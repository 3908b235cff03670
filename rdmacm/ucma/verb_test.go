package ucma

import (
	"testing"

	"verbena/uapi/ucm"
)

// TestEveryCommandIsVerb checks that every command except GET_EVENT, which waits, can be made to fail.
func TestEveryCommandIsVerb(t *testing.T) {
	for c, f := range commandFuncs {
		if id := ucm.Command(c); (verbNames[id] != "") != (f != nil && id != ucm.CmdGetEvent) {
			t.Errorf("%v: got verb %q, want one exactly for each function", id, verbNames[id])
		}
	}
}
