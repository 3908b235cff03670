// Package remote serves device files to programs over a socket: to those that use package verbs, which speak its protocol (internal/ctl/devfile),
// instead of being unmodified programs whose system calls are trapped. Behind it are the same files of packages uverbs and ucma.
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
// A client is believed nothing. It shares two files with the service, which have been made here, are charged to its user, and cannot be made
// shorter: no access to them faults or waits for anybody. An address in a command that is not in such memory is an error, unless the
// client has handed over its own memory, which is then used as that of a program under supervision. A client that does not read what is sent to
// it is disconnected after a time, and so is one that sends descriptors where none belong, whose close may take as long as it likes. One command
// of a connection runs at a time. The process that has connected may execute other programs, and others may use its connection: nothing is looked
// up by its number but its limit of locked memory, without the capabilities of a set-uid program.
package remote
