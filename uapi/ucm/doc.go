// Package ucm provides the user ABI of the connection manager, /dev/infiniband/rdma_cm, in Go types
// (rdma/rdma_user_cm.h, version 4). It has the commands that programs write to the file, and the answers that are
// stored through the pointers in them. The tests compare sizes and offsets with the C headers.
//
// Every command is a [Hdr] and the struct of the command. [uapi.Decode] and [uapi.Encode] translate them.
package ucm
