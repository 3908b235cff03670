// Package rights receives and closes the descriptors that users send over Unix sockets (SCM_RIGHTS, unix(7)).
//
// Each descriptor can hold up the thread that closes it: a socket lingers for as long as SO_LINGER says, and a FUSE
// server is asked first. The kernel closes descriptors by itself, in the thread that receives, where recvmsg(2) has no
// room for them, and in the thread that closes a socket with unread messages. So a service reads a socket that users
// write to only by [Receive], which has room for all descriptors of a message, and closes what users have sent, and the
// socket, by a [Queue]. A Queue closes a few descriptors of one user at a time, and each of its threads counts as a
// worker of the user.
//
// Where the kernel can refuse descriptors for a socket (SO_PASSRIGHTS, Linux 6.16), [Refuse] makes it do so.
//
// Limit: the kernel still closes descriptors in the receiving thread if this process has no free descriptor for them.
// At most [maxReceiving] messages with descriptors of one user are held at a time, to keep that from happening.
package rights
