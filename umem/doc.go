// Package umem represents registered memory: its address space, its access rights, and the account to which its pages
// are charged.
//
// A [Space] is the address space of another process ([Process]) or of this process ([Local]). A [Region] is a
// registration of a range of a Space. When a Region is created, it is checked against the mappings and charged to an
// [Account] in whole pages. A Region is addressed by its I/O virtual address (IOVA), which may differ from the address
// in the Space. Drivers copy into and out of a Region. Drivers never receive a pointer.
//
// The package corresponds to drivers/infiniband/core/umem.c. The kernel pins pages, but a user-space service cannot pin
// pages. The package counts and limits the pages as if they were pinned. An access to a range that the process has
// unmapped returns [ErrFault]. The driver reports this as a protection error. A region registered on demand is not
// charged. Such a region is not checked before its use.
package umem
