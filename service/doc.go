// Package service is the process that programs under Verbena talk to: it owns the devices, and supervises the
// programs that `verbena run` starts.
//
// A [Service] is the composition of the other packages: an ib.Core with devices of its drivers on it, a uverbs.Server
// as the core's client, and a supervisor.Supervisor that shows the device files to programs. It listens on a Unix
// socket, on which the command line attaches programs and asks for links, resources and faults (package internal/ctl):
//
//	verbena run ----- attach (listener descriptor) -----> Service --- supervisor.Session
//	      \---------- stays connected as the guardian        |
//	verbena link, res, fault -- one request, one answer -----+
//
// One user has one service per network namespace (ctl.Location), started by the first `verbena run` and ended when
// it has been idle for a while.
package service
