// Package ucm is the user ABI of the connection manager, /dev/infiniband/rdma_cm, in Go types: commands that are
// written to the file, and the answers that are stored through the pointers in them (rdma/rdma_user_cm.h, version 4).
// Sizes and offsets are tested against the C headers.
//
// Every command is a [Hdr] and the struct of the command. [uapi.Decode] and [uapi.Encode] translate them.
package ucm
