package uverbs

import (
	"slices"
	"testing"

	"verbena/uapi"
)

// TestEveryCommandIsVerb: every command and method can be made to fail, but those that move data.
func TestEveryCommandIsVerb(t *testing.T) {
	data := []uapi.Command{uapi.CmdPostSend, uapi.CmdPostRecv, uapi.CmdPostSRQRecv, uapi.CmdPollCQ}
	for id, c := range commands {
		if (c.verb == "") != slices.Contains(data, id) {
			t.Errorf("%v: verb %q", id, c.verb)
		}
	}
	for id, c := range exCommands {
		if c.verb == "" {
			t.Errorf("%v has no verb", id)
		}
	}
	for id, m := range methods {
		if (verbsOfMethods[id] == "") != (id == methodID{uapi.ObjectDevice, uapi.MethodInvokeWrite}) {
			t.Errorf("%s: verb %q", m.name, verbsOfMethods[id])
		}
	}
	for second, name := range otherNames {
		if v, ok := CanonicalVerb(second); !ok || v != name || !slices.Contains(Verbs(), name) {
			t.Errorf("%s is %q", second, v)
		}
	}
}
