// Package kept keeps users charged for objects of the kernel that their programs still have, when the service does not
// use them any more: the ends of pipes and of sockets, eventfds, memfds. The kernel charges their memory to the control
// group of the process that made them, which is the service. Without this charge a user could have any number of them.
//
// A pipe, a socket or an eventfd is noted ([Kept.Note]) before a program gets it: an epoll instance then watches its
// description (struct file), without the service having a descriptor of it. The kernel removes the description from the
// instance when its last descriptor is closed, in whatever process, and lists in /proc/self/fdinfo those that are left.
// Other objects say themselves whether they are in use ([Object]).
//
// Limit: files of the views below /sys and /dev that a program has opened are not noted, since the kernel has no epoll
// for regular files. See SECURITY.md.
package kept
