package ucma

import (
	"testing"

	"verbena/uapi/ucm"
)

// TestEveryCommandIsVerb: every command can be made to fail, but GET_EVENT, which waits.
func TestEveryCommandIsVerb(t *testing.T) {
	for c, f := range commands {
		if id := ucm.Command(c); (verbs[id] != "") != (f != nil && id != ucm.CmdGetEvent) {
			t.Errorf("%v: verb %q", id, verbs[id])
		}
	}
}
