// Package kept charges users for kernel objects that their programs keep after the service has stopped using them.
// The objects are ends of pipes and sockets, eventfds and memfds. The kernel charges the memory of these objects to
// the control group of the service, which has created them. Without this charge, a user could keep any number of
// objects.
//
// A pipe, a socket or an eventfd is noted ([UserObjects.NoteFile]) before a program receives it. An epoll instance then
// watches the object's description (struct file), although the service has no descriptor of the object. When the
// last descriptor in any process is closed, the kernel removes the description from the epoll instance.
// /proc/self/fdinfo lists the remaining descriptions. Other objects themselves report whether they are in use
// ([Object]).
//
// Limit: open files of the views below /sys and /dev are not noted, because the kernel has no epoll for regular
// files. See SECURITY.md.
package kept
