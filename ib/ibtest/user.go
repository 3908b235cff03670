package ibtest

import (
	"verbena/ib"
	"verbena/internal/gate"
)

// userSide provides the midlayer's calls for user contexts.
var userSide = ib.ForUser(gate.NewKey())
