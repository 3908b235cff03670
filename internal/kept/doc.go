// Package kept charges users for kernel objects that their programs keep after the service has stopped using them: ends
// of pipes and sockets, eventfds, memfds. The kernel charges their memory to the control group of the service, which
// has created them. Without this charge a user could keep any number of them.
//
// A pipe, a socket or an eventfd is noted ([Kept.Note]) before a program gets it. An epoll instance then watches its
// description (struct file), although the service has no descriptor of it. When the last descriptor is closed, in any
// process, the kernel removes the description from the instance. /proc/self/fdinfo lists the remaining ones. Other
// objects report themselves whether they are in use ([Object]).
//
// Limit: open files of the views below /sys and /dev are not noted, since the kernel has no epoll for regular files.
// See SECURITY.md.
package kept
