// Package remote serves device files to programs over a socket. The programs use package verbs, which implements the
// protocol (internal/ctl/devfile). Unmodified programs do not use it: the supervisor handles their system calls. Both
// use the same files of packages uverbs and ucma.
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
// The service does not trust a client. The two share two files, which the service has created, charged to the client's
// user, and sealed against truncation. An access to them never faults or blocks on another process. An address outside
// that memory is an error, unless the client has handed over its own memory, which is then accessed like that of a
// supervised program.
//
// A client is disconnected if it does not read its replies within a time limit, or if it sends unexpected descriptors,
// because it can delay their close without limit. The service executes one command of a connection at a time.
//
// The connected process may execute other programs, and other processes may use its connection. Therefore the service
// uses the process ID only for the limit of locked memory, and ignores the capabilities of a set-uid program there.
package remote
