package observe

import "sync/atomic"

// Pattern fills memory and fields that are undefined or no longer valid.
const Pattern = 0xa5a5a5a5

// Endings is the number of destructions of objects that have begun or ended. Package ib/check counts.
var Endings atomic.Uint64
