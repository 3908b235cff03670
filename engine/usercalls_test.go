package engine

import (
	"verbena/ib"
	"verbena/internal/gate"
)

// ibuser holds the midlayer's calls for user contexts.
var ibuser = ib.ForUser(gate.NewKey())
