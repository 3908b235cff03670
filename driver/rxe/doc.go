// Package rxe is the software RoCEv2 driver. It mirrors drivers/infiniband/sw/rxe: programs with the stock rxe provider
// of libibverbs run on its devices.
//
// The driver is a personality of package engine, which has the transport protocol, memory, and queue pairs. Package
// layout has the rings, work requests and completions in the form of the kernel's rxe; package ring has the memory of a
// ring, and completes the requests of a service that has died.
package rxe
