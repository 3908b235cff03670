// Package rights receives and closes the descriptors that users send over Unix sockets (SCM_RIGHTS, unix(7)).
//
// Closing such a descriptor can block a thread. A socket lingers for SO_LINGER, and a FUSE server receives a
// request first. The kernel itself closes descriptors in the receiving thread if recvmsg(2) has no room for them,
// and in a thread that closes a socket with unread messages. Therefore a service reads sockets of users only by
// [Receive], which has room for all descriptors of a message. A [Queue] closes the received descriptors and the
// socket. A Queue closes a few descriptors of one user at a time, and charges each of its threads to the user as a
// worker.
//
// If the kernel can refuse descriptors for a socket (SO_PASSRIGHTS, Linux 6.16), [RefuseDescriptors] enables that.
//
// Limit: if this process has no free descriptor, the kernel still closes received descriptors in the receiving
// thread. To prevent such closes, the service holds at most [maxReceiving] messages with descriptors per user.
package rights
