// Package ucm provides the user ABI of the connection manager, /dev/infiniband/rdma_cm, as Go types
// (rdma/rdma_user_cm.h, version 4). The package contains the commands that programs write to the file, and the
// responses that are stored at the addresses in the commands. The tests compare sizes and offsets with the C headers.
//
// Every command consists of a [Hdr] and the struct of the command. [uapi.Decode] and [uapi.Encode] translate them.
package ucm
