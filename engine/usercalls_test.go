package engine

import (
	"verbena/ib"
	"verbena/internal/gate"
)

// ibuser has the midlayer's calls for user contexts.
var ibuser = ib.ForUser(gate.NewKey())
