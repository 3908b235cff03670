// Package umem represents registered memory: its address space, its access rights, and the account that is charged for
// its pages.
//
// A [Space] is an address space: that of another process ([Process]) or of this one ([Local]). A [Region] is a
// registration: a range of a Space, checked against the mappings when it is created, and charged to an [Account] in
// whole pages. It is addressed by its I/O virtual address (IOVA), which may differ from the address in the Space.
// Drivers copy into and out of a Region; they never receive a pointer.
//
// The package corresponds to drivers/infiniband/core/umem.c. The kernel pins pages, which a user-space service cannot
// do. It counts and limits the pages as if they were pinned. An access to a range that the process has unmapped since
// returns [ErrFault], which the driver reports as a protection error. A region registered on demand is not counted, and
// not checked before it is used.
package umem
