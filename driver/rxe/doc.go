// Package rxe is the software RoCEv2 driver: a [Device] that speaks the InfiniBand transport protocol over UDP, in
// this process. It mirrors drivers/infiniband/sw/rxe and keeps its map of files.
package rxe
