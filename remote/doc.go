// Package remote serves device files to programs over a socket. The programs use package verbs, which implements
// the protocol (internal/ctl/devfile). Unmodified programs do not use package remote, because the supervisor
// handles their system calls. Both ways use the same files of packages uverbs and ucma.
//
//	program                          service
//	  commands  ---- connection ---> File.Serve ----> uverbs.File, ucma.File
//	  queues    <--- queue file ---> driver
//	  buffers   <--- buffer file --> driver
//	  posts     ---- queue file ---> poller.Pollers -> uverbs.File.RingPosted
//	              (bell: wake up)
//
// # Trust
//
// The service does not trust a client. The client and the service share two files. The service has created the
// files, charged them to the client's user, and sealed them against truncation. An access to these files never
// faults or blocks on another process. An address outside that memory is an error, unless the client has passed its
// own memory to the service. The service accesses that memory in the same way as the memory of a supervised
// program.
//
// The service disconnects a client that does not read its replies within a time limit. It also disconnects a client
// that sends unexpected descriptors, because the client can delay their close without limit. The service executes
// one command of a connection at a time.
//
// The connected process may execute other programs, and other processes may use its connection. Therefore the
// service uses the process ID only for the limit of locked memory, and ignores the capabilities of a set-uid
// program for that limit.
package remote
