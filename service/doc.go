// Package service implements the service process of Verbena. The service owns the devices, and supervises the programs
// that `verbena run` starts.
//
// A [Service] combines the other packages: an ib.Core with the devices of its drivers, a uverbs.Server as a client
// of the core, and a supervisor.Supervisor that shows the device files to programs. The package listens on a Unix
// socket. Over that socket the command line attaches programs, and sends requests about links, resources and faults
// (package internal/ctl):
//
//	verbena run ----- attach (listener descriptor) -----> Service --- supervisor.Session
//	      \---------- stays connected as the guardian        |
//	verbena link, res, fault -- one request, one answer -----+
//
// A user has one service per network namespace (ctl.Location). The first `verbena run` starts the service. The
// service ends after it has been idle for some time.
package service
