package ibtest

import (
	"verbena/ib"
	"verbena/internal/gate"
)

// user provides the midlayer's calls for user contexts.
var user = ib.ForUser(gate.Open())
