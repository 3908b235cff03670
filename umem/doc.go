// Package umem is registered memory: the address space it lies in, the rights it was registered with, and the
// account its pages are charged to.
//
// A [Space] is where bytes live: another process ([Process]) or this one ([Local]). A [Region] is one
// registration: a range of a Space, checked against the mappings when it is made, charged to an [Account] in
// whole pages, and from then on named by its I/O virtual address (IOVA), which need not equal the address in
// the Space. Drivers copy in and out of a Region; they never see a pointer.
//
// The package stands for drivers/infiniband/core/umem.c. Where the kernel pins pages, a user-space service
// cannot: the pages are counted and limited as if pinned, and a range that the process has unmapped since gives
// [ErrFault] at the time of use, which the driver reports as a protection error. A region that is registered on demand
// differs in that nothing is counted, and nothing checked before it is used.
package umem
